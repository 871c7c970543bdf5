"""What is measured of each family: seeded cases, a chain of calls, a cost model, peers. Found by module name."""
