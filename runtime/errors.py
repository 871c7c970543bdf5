"""What can go wrong between a call and a launched kernel; every message is a sentence with a remedy."""

from __future__ import annotations

from collections.abc import Iterable


class FormatMismatch(RuntimeError):
    """The dispatch module was written for another version of the table's data model."""


class InvalidSetting(ValueError):
    """An environment variable has a value that isn't allowed."""


class Unsupported(RuntimeError):
    """No kernel serves the call, and the caller asked for an error instead of a fallback."""


class NotExact(Unsupported):
    """`exact=True` was asked for, and only a route under a tolerance could serve the call."""


class NotWarm(RuntimeError):
    """A kernel would have to be compiled or loaded while a CUDA graph is being captured."""


class ForkedProcess(RuntimeError):
    """Kernels can't be launched here: the process was forked after its parent had loaded some."""


class Misaligned(ValueError):
    """A plan was given a tensor that doesn't start at a multiple of 16 bytes."""


class LoadError(RuntimeError):
    """A build can't be turned into a loaded module here: the candidate isn't usable on this machine."""


class StaleSource(LoadError):
    """A generated source isn't the text that the dispatch table was generated with."""


class Disagreement(ValueError):
    """Ranks that want to share a channel were given different things."""


class PeerFailed(RuntimeError):
    """Another rank failed in a step that all ranks take together, so this rank didn't go on either."""


class CtasApart(RuntimeError):
    """CTAs of one kernel that wait for each other weren't on the GPU together."""


class ChannelError(RuntimeError):
    """A channel can't be used any more until `reset()` of its communicator."""


class Overlap(ChannelError):
    """Two calls used one channel at the same time."""


class OtherCall(ChannelError, Disagreement):
    """Ranks made different calls on one channel: of another kind or size, or by another route."""


class PeerTimeout(ChannelError):
    """A rank waited in vain for a peer."""

    def __init__(self, message: str, *, rank: int, peer: int, channel: str, expected: int, seen: int) -> None:
        """Say who waited for whom, for which call of the channel, and which one had been seen last."""
        super().__init__(message)
        self.rank, self.peer, self.channel, self.expected, self.seen = rank, peer, channel, expected, seen


def not_allowed(what: str, value: object, allowed: Iterable[str]) -> str:
    """The sentence about a value that isn't among the allowed ones; it names the nearest."""
    import difflib  # only a mistake needs it, and every import of the package would pay for it

    nearest = difflib.get_close_matches(str(value), allowed, 1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{what} is {value!r}; allowed are {', '.join(allowed)}{hint}"


def first_line(error: Exception) -> str:
    """The first line of an error that another library raised; the name of its class where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
