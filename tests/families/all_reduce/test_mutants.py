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
    if "void reduce(" in text:
        shared = text[text.index("void reduce(") :]
        bodies.append(shared[: shared.index("\n}\n")])
    for body in bodies:
        for barrier in _BARRIER.finditer(body):
            gone = ";" if barrier[0].endswith(";") else "true"
            yield body, body[: barrier.start()] + gone + body[barrier.end() :]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("name", "barriers"), [("tagged", (1, 1)), ("one", (3, 2)), ("two", (3, 4))])
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


LOAD = "__nv_atomic_load_n(const_cast<unsigned int*>(flag), {}, __NV_THREAD_SCOPE_SYSTEM)"
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
        publish = "store_release_system(flag(channels.of[threadIdx.x], START, call.rank), call.epoch);"
        early = f"  if (threadIdx.x < WORLD_SIZE)\n    {publish}\n"
        assert found(scenario(group, name, "staged", ((copy, early + copy),)))


WRAP = {
    "signed": ("static_cast<int>(seen) >= static_cast<int>(epoch)", 2**31 - 3),
    "plain": ("seen >= epoch", 2**32 - 4),
}
"""A wrong comparison, and the epoch that shows it."""


@pytest.mark.parametrize("how", WRAP)
@pytest.mark.parametrize("name", ["one", "two"])
def test_epochs_compared_otherwise_are_found_at_the_wrap(group, name, how):
    comparison, epoch = WRAP[how]
    edit = ("return seen == epoch || seen == following(epoch);", f"return {comparison};")
    assert found_by_fuzz(scenario(group, name, "staged", (edit,), epoch=epoch))
    assert not found_by_fuzz(scenario(group, name, "staged", (), epoch=epoch))


def test_a_peer_that_is_one_call_ahead_must_be_let_pass(group):
    made = group("bfloat16", 4, edits=((" || seen == following(epoch)", ""),))
    for _ in range(8):
        made.call("one", "staged", 1)
    assert found_by_fuzz(made)


def test_epoch_zero_must_not_be_used(group):
    """Words that nobody has written yet hold tag 0."""
    edit = ("epoch == 0xffffffffu ? 2u : epoch + 1u", "epoch + 1u")
    for name in ("tagged", "narrow"):
        assert found_by_fuzz(scenario(group, name, "staged", (edit,), epoch=2**32 - 1, tag=0))
        assert not found_by_fuzz(scenario(group, name, "staged", (), epoch=2**32 - 1, tag=0))


@pytest.mark.parametrize(
    "edit",
    [
        ("(value.y == epoch) & (value.w == epoch)", "value.y == epoch"),  # only the first half is looked at
        ("(value.y == epoch) & (value.w == epoch)", "value.w == epoch"),
        (
            "(value.y == epoch) & (value.w == epoch)",
            "value.y == epoch && (value.w & 0xffff) == (epoch & 0xffff) - 1",
        ),
        ("(value.y == epoch) & (value.w == epoch)", "true"),
        ("(call.epoch & 1) * WORLD_SIZE + from", "from"),  # one slot
        ("{word.x, epoch, word.y, epoch}", "{word.x, epoch, word.y, 0u}"),
    ],
)
def test_every_tag_is_needed(group, edit):
    assert found_by_fuzz(scenario(group, "tagged", "staged", (edit,)), seeds=150)


@pytest.mark.parametrize(
    "edit",
    [
        ("value >> 32 == epoch", "true"),
        ("value >> 32 == epoch", "(value >> 32 & 1) == (epoch & 1)"),
        ("(call.epoch & 1) * WORLD_SIZE + from", "from"),
    ],
)
def test_every_narrow_tag_is_needed(group, edit):
    assert found_by_fuzz(scenario(group, "narrow", "staged", (edit,)), seeds=150)


@pytest.mark.parametrize("name", ["one", "two"])
def test_copies_must_alternate(group, name):
    """For two stages the second barrier already holds the peers together."""
    edit = ("static_cast<unsigned long long>(call.epoch & 1) * CAPACITY", "0")
    assert found(scenario(group, name, "staged", (edit,))) == (name == "one")


def test_all_epochs_advance_alike(group):
    """Else a call of another grid finds epochs, and with them tags, that were used before."""
    edit = ("cta < CHANNEL_CTAS; cta += CTAS * THREADS)", "cta < CTAS; cta += CTAS * THREADS)")
    made = group("bfloat16", 2, edits=(edit,))
    for name in ("narrow", "tagged", "narrow", "narrow", "tagged", "one", "two"):
        made.call(name, "staged", 301)
    assert found_by_fuzz(made)


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
