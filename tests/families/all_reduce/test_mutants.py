"""Negative controls: every barrier, order, tag and parity that is taken out of a text is found."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kernwright.emulator import Interleaving, find_races, fuzz

CANDIDATES = ("tagged", "narrow", "one", "two")
OPERATIONS = ("symmetric", "staged", "sum2")
SEEDS = 40
_BARRIER = re.compile(r"__syncthreads\(\);|meet\(channels, call, (?:START|SECOND)\)")


def scenario(group, name, operation, edits, epoch=0, ranks=2, dtype="bfloat16", **options):
    """Calls that reuse slots, packets and scratch at once, of sizes that leave other words to other CTAs."""
    made = group(dtype, ranks, edits=edits, epoch=epoch, **options)
    for numel in (131, 131, 40, 131, 131):
        made.call(name, operation, numel)
    return made


def found_by_fuzz(made, seeds=SEEDS) -> bool:
    return bool(fuzz(made.launches, made.expected, seeds).problems)


def found(made) -> bool:
    """By fuzzing, else by ThreadSanitizer."""
    return found_by_fuzz(made) or bool(find_races(made.launches, Interleaving(1, "random")))


def without_barriers(text: str, operation: str, name: str) -> Iterator[tuple[str, str]]:
    """For each barrier of a kernel, and of the function that it calls: the line, and the line without it."""
    kernel = text[text.index(f"all_reduce_{operation}_{name}(") :]
    bodies = [kernel[: kernel.index("\n}\n")]]
    if "bool reduce(" in text:
        shared = text[text.index("bool reduce(") :]
        bodies.append(shared[: shared.index("\n}\n")])
    for body in bodies:
        for barrier in _BARRIER.finditer(body):
            gone = ";" if barrier[0].endswith(";") else "true"
            yield body, body[: barrier.start()] + gone + body[barrier.end() :]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("name", "barriers"), [("one", (3, 2)), ("two", (3, 4))])
def test_every_barrier_is_needed(group, name, barriers, operation):
    text = group("bfloat16", 2).candidate(name).sources[-1].text
    mutants = list(without_barriers(text, operation, name))
    assert len(mutants) == barriers[operation != "symmetric"]
    for edit in mutants:
        assert found(scenario(group, name, operation, (edit,))), edit[1]


@pytest.mark.parametrize("name", ["one", "two"])
def test_the_barrier_behind_the_wait_is_needed(group, name):
    edit = ("return __syncthreads_and(met);", "return met;")
    assert found(scenario(group, name, "symmetric", (edit,)))


LOAD = "__nv_atomic_load_n(const_cast<unsigned long long*>(flag), {}, __NV_THREAD_SCOPE_SYSTEM)"
STORE = "__nv_atomic_store_n(flag, value, {}, __NV_THREAD_SCOPE_SYSTEM)"


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize(("what", "order"), [(LOAD, "ACQUIRE"), (STORE, "RELEASE")])
def test_acquire_and_release_are_needed(group, name, what, order):
    """No interleaving shows it; ThreadSanitizer does."""
    edit = (what.format(f"__NV_ATOMIC_{order}"), what.format("__NV_ATOMIC_RELAXED"))
    for operation in OPERATIONS:
        assert find_races(scenario(group, name, operation, (edit,)).launches)


def test_a_release_before_the_data_is_found(group):
    for name in ("one", "two"):
        text = group("bfloat16", 2).candidate(name).sources[-1].text
        kernel = text[text.index(f"all_reduce_staged_{name}(") :]
        body = kernel[: kernel.index("\n}\n")]
        copy = body[body.index("  if (!call.lost)") : body.index("  __syncthreads();")]
        publish = (
            "store_release_system(flag(channels.of[threadIdx.x], call.epoch, START, call.rank), mark(call));"
        )
        early = f"  if (threadIdx.x < WORLD_SIZE)\n    {publish}\n"
        assert found(scenario(group, name, "staged", ((copy, early + copy),)))


WRAP = {
    "signed": ("static_cast<int>(seen >> 32) >= static_cast<int>(call.epoch)", 2**31 - 3),
    "plain": ("(seen >> 32) >= call.epoch", 2**32 - 4),
}
"""A wrong comparison, and the epoch that shows it."""


@pytest.mark.parametrize("how", WRAP)
@pytest.mark.parametrize("name", ["one", "two"])
def test_epochs_compared_otherwise_are_found_at_the_wrap(group, name, how):
    comparison, epoch = WRAP[how]
    edit = ("if (seen == mark(call)) return true;", f"if ({comparison}) return true;")
    assert found_by_fuzz(scenario(group, name, "staged", (edit,), epoch=epoch))
    assert not found_by_fuzz(scenario(group, name, "staged", (), epoch=epoch))


def test_flags_must_alternate(group):
    """Else a peer that is one call ahead hides that it came to this one."""
    made = group("bfloat16", 4, edits=(("(((epoch & 1) * BARRIERS + barrier)", "((barrier)"),))
    for _ in range(8):
        made.call("one", "staged", 1)
    assert found_by_fuzz(made)


@pytest.mark.parametrize("epoch", [2**24 - 1, 2**32 - 1])
def test_generation_zero_must_not_be_used(group, epoch):
    """Words that nobody has written yet hold tag 0, and the digest's bits may be 0."""
    edit = ("? epoch + 3u : epoch + 1u", "? epoch + 1u : epoch + 1u")
    digest = ("__device__ __forceinline__ Tags tags_of(const Call& call) {\n",
              "__device__ __forceinline__ Tags tags_of(Call call) {\n  call.digest = 0;\n")  # fmt: skip
    for name in ("tagged", "narrow"):
        assert found_by_fuzz(scenario(group, name, "staged", (edit, digest), epoch=epoch, tag=0))
        assert not found_by_fuzz(scenario(group, name, "staged", (digest,), epoch=epoch, tag=0))


@pytest.mark.parametrize(
    "edit",
    [
        ("(value.y == tags.first) & (value.w == tags.second)", "value.y == tags.first"),
        ("(value.y == tags.first) & (value.w == tags.second)", "value.w == tags.second"),
        (
            "(value.y == tags.first) & (value.w == tags.second)",
            "value.y == tags.first && value.w == tags.second - 512",
        ),
        ("(value.y == tags.first) & (value.w == tags.second)", "true"),
        ("(epoch & 1) * WORLD_SIZE + from", "from"),  # one slot
        ("{word.x, tags.first, word.y, tags.second}", "{word.x, tags.first, word.y, 0u}"),
    ],
)
def test_every_tag_is_needed(group, edit):
    assert found_by_fuzz(scenario(group, "tagged", "staged", (edit,)), seeds=150)


@pytest.mark.parametrize(
    "edit",
    [
        ("value >> 32 == tags.first", "true"),
        ("value >> 32 == tags.first", "(value >> 32 & 256) == (tags.first & 256)"),
        ("(epoch & 1) * WORLD_SIZE + from", "from"),
    ],
)
def test_every_narrow_tag_is_needed(group, edit):
    assert found_by_fuzz(scenario(group, "narrow", "staged", (edit,)), seeds=150)


@pytest.mark.parametrize("name", ["one", "two"])
def test_copies_must_alternate(group, name):
    """For two stages the second barrier already holds the peers together."""
    edit = ("static_cast<unsigned long long>(call.epoch & 1) * CAPACITY", "0")
    assert found(scenario(group, name, "staged", (edit,))) == (name == "one")


TICKET = [
    # A call that doesn't give the ticket back, or not only once, whatever its grid.
    ("blockIdx.x == 0 ? CHANNEL_CTAS + 1 - CTAS : 1u", "1u"),
    (
        "static_cast<unsigned long long>(call.epoch) << 32);",
        "static_cast<unsigned long long>(last) << 32);",
    ),
    ("% CHANNEL_CTAS != 0) return;", "% CHANNEL_CTAS > 3) return;"),
    # Every call looks as if another were inside.
    ("static_cast<unsigned int>(found) == mine ? 0u :", "found == mine ? 0u :"),
    # What the first thread has read, others read before.
    ("__syncthreads();  // one decision", "// one decision"),
]


@pytest.mark.parametrize("edit", TICKET)
def test_the_ticket_is_handed_from_grid_to_grid(group, edit):
    made = group("bfloat16", 2, edits=(edit,))
    for name in ("narrow", "tagged", "narrow", "narrow", "tagged", "one", "two"):
        made.call(name, "staged", 301)
    assert found(made)


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize(
    ("edit", "dtype"),
    [
        (("float sum = to_float(elements_of(words[0]).value[i]);\n#pragma unroll\n    for (int rank = 1;",
          "float sum = 0.0f;\n#pragma unroll\n    for (int rank = 0;"), "bfloat16"),  # -0 is lost
        (("to_float(elements_of(words[rank]).value[i])", "to_float(elements_of(words[WORLD_SIZE - rank]).value[i])"),
         "float32"),  # another order
        (("sum = sum + to_float(elements_of(words[rank]).value[i]);",
          "sum = to_float(to_storage(sum + to_float(elements_of(words[rank]).value[i])));"),
         "bfloat16"),  # rounds between
        (("to_storage(to_float(elements_of(a).value[i]) + to_float(elements_of(b).value[i]))",
          "to_storage(to_float(elements_of(a).value[i]))"), "bfloat16"),
    ],
)  # fmt: skip
def test_a_changed_computation_is_found(group, bits, name, edit, dtype):
    made = group(dtype, 4, edits=(edit,))
    assert edit[0] in made.candidate(name).sources[-1].text
    made.call(name, "staged", 33, [bits([-0.0] * 33, dtype)] * 4)
    made.call(name, "sum2", 205)
    assert found_by_fuzz(made, seeds=4)


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize(
    ("edit", "numel", "shift"),
    [
        (("first + i < source.numel ?", "true ?"), 31, 1),
        (("if (first + i < target.numel) target", "target"), 31, 1),
        (("first + ELEMENTS <= target.numel", "true"), 33, 0),
        (("source.aligned &&", "true &&"), 63, 1),
        (("target.aligned &&", "true &&"), 63, 1),
    ],
)
def test_an_access_past_the_end_or_misaligned_is_found(group, name, edit, numel, shift):
    """Tensors that begin an element late, and end where their memory does."""
    shifted = (".of[blockIdx.y], numel)", f".of[blockIdx.y] + {shift}, numel)")
    made = group("float16", 2, edits=(edit, shifted))
    assert edit[0] in made.candidate(name).sources[-1].text
    made.call(name, "staged", numel, shift=shift)
    assert found_by_fuzz(made, seeds=4)
