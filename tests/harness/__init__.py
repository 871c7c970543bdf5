"""What tests of several folders build on: paths, workspaces, hand-made tables, ranks on the emulator."""
