"""Recommend a model by evaluations of similar turns.

    make_fingerprint(…) -> Fingerprint    features of a turn
    PatternSample                         a fingerprint, the model that answered, and its rating
    recommend(…) -> Recommendation        the best model on the most similar samples, and the confidence

A fingerprint is created at the start of a turn and stored with its evaluation, so both sides of a comparison come from
the same function. It contains the intent, file extensions and top folders of the message, and no sentence. Invariant:
the recommendation depends on the samples and their order only.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Annotated, Final

import msgspec

NEAREST: Final = 10  # number of most similar samples
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


# --- features of a turn ----------------------------------------------------------------------------------------------


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Features of a turn. Sets are sorted tuples, so equal fingerprints have equal bytes."""

    intent_tags: tuple[str, ...] = ()  # intents, by the words of INTENTS
    file_extensions: tuple[str, ...] = ()  # of files that the message names, with the dot, in lower case
    tool_names: tuple[str, ...] = ()  # called in the session
    path_buckets: tuple[str, ...] = ()  # first folders of paths in the message, in lower case
    side_effects: tuple[str, ...] = ()  # of the called tools: read, write, execute, …
    token_bucket: str = ""  # length of the prompt
    has_images: bool = False  # in the message or the history


INTENTS: Final = {
    "explain": "explain describe why what how understand meaning",
    "fix": "fix bug error broken fails failing crash exception traceback debug wrong",
    "write": "write add implement create build generate draft",
    "change": "change refactor rename move replace clean simplify rewrite migrate update",
    "review": "review check audit critique feedback improve",
    "test": "test tests testing pytest coverage assert",
    "document": "document documentation docs readme docstring changelog comment",
    "search": "find search locate where grep list",
    "summarize": "summarize summarise summary tldr shorten condense",
    "translate": "translate translation",
    "plan": "plan design architecture propose decide compare",
    "run": "run execute install deploy start",
    "compute": "calculate compute sum count solve prove",
    "extract": "extract parse classify label json csv table",
}
_INTENT_OF_WORD: Final = {word: intent for intent, words in INTENTS.items() for word in words.split()}
_TOKEN: Final = re.compile(r"[\w.~/-]+")
_NO_FILES: Final = ("e.g", "i.e")
_EXTENSION: Final = re.compile(r"[\w~-]\.([a-z]\w{0,9})\Z")
_MAX_NAMES: Final = 16  # of one kind; a message may list thousands of files
_MAX_TEXT_LENGTH: Final = 20_000  # later text adds nothing to the intent
_TOKEN_BUCKETS: Final = ((1_000, "<1k"), (4_000, "<4k"), (16_000, "<16k"), (64_000, "<64k"), (256_000, "<256k"))


def make_fingerprint(
    text: str,
    *,
    estimated_input_tokens: int,
    has_images: bool = False,
    tool_names: Iterable[str] = (),
    side_effects: Iterable[str] = (),
) -> Fingerprint:
    """Return the fingerprint of a turn that starts with this text."""
    head = text[:_MAX_TEXT_LENGTH].lower()
    tokens = dict.fromkeys(token.rstrip(".") for token in _TOKEN.findall(head))
    paths = [token for token in tokens if ("." in token or "/" in token) and _is_path(token)]
    return Fingerprint(
        intent_tags=_first_names(_INTENT_OF_WORD[token] for token in tokens if token in _INTENT_OF_WORD),
        file_extensions=_first_names(f".{match[1]}" for path in paths if (match := _EXTENSION.search(path[-16:]))),
        tool_names=_first_names(tool_names),
        path_buckets=_first_names(bucket for path in paths if (bucket := _first_folder(path))),
        side_effects=_first_names(str(effect) for effect in side_effects),
        token_bucket=next((name for below, name in _TOKEN_BUCKETS if estimated_input_tokens < below), "256k+"),
        has_images=has_images,
    )


def _first_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first distinct names, sorted."""
    return tuple(sorted(list(dict.fromkeys(names))[:_MAX_NAMES]))


def _is_path(token: str) -> bool:
    """Whether a token looks like a file or a folder: src/cart.py, cart.py, ./src, a/b/c; and/or does not."""
    if token in _NO_FILES:
        return False
    return _EXTENSION.search(token[-16:]) is not None or token.count("/") > 1 or token.startswith(("/", "./", "~/"))


def _first_folder(path: str) -> str:
    parts = [part for part in path.split("/")[:-1] if part not in ("", ".", "..", "~")]
    return parts[0] if parts else ""


def similarity(left: Fingerprint, right: Fingerprint) -> float:
    """The similarity of two turns from 0 to 1: a weighted Jaccard index."""
    score = (
        0.30 * _jaccard(left.intent_tags, right.intent_tags)
        + 0.20 * _jaccard(left.file_extensions, right.file_extensions)
        + 0.15 * _jaccard(left.tool_names, right.tool_names)
        + 0.10 * _jaccard(left.path_buckets, right.path_buckets)
        + 0.10 * _jaccard(left.side_effects, right.side_effects)
        + 0.10 * (left.token_bucket == right.token_bucket)
        + 0.05 * (left.has_images == right.has_images)
    )
    return min(1.0, score)


@functools.lru_cache(maxsize=16_384)  # few distinct sets, many samples
def _jaccard(left: tuple[str, ...], right: tuple[str, ...]) -> float:
    """The size of the intersection divided by the size of the union; 1 for two empty sets."""
    if left == right:
        return 1.0
    if not left or not right:
        return 0.0
    common = len(set(left).intersection(right))
    return common / (len(left) + len(right) - common)


# --- what worked -----------------------------------------------------------------------------------------------------


class PatternSample(msgspec.Struct, frozen=True, kw_only=True):
    """Rating of one model on turns with one fingerprint."""

    fingerprint: Fingerprint
    primary_model: str  # provider:name
    success: Share  # from 0 to 1; a mean if the sample covers several turns
    sample_size: Annotated[int, msgspec.Meta(ge=1)] = 1  # number of turns
    cost_usd: Decimal | None = None  # cost of one turn, if known


class PatternSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds for a recommendation."""

    enabled: bool = True
    cost_weight: Share = 0.05  # weight of low cost against success
    min_confidence: Share = 0.05
    min_sample_size: Annotated[int, msgspec.Meta(ge=1)] = 5


class PatternAlternative(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model with good results in similar turns."""

    model: str
    score: float
    sample_size: Annotated[int, msgspec.Meta(ge=0)]


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The models by score, best first, and the lead of the first."""

    ranked: tuple[PatternAlternative, ...]
    confidence: Share

    @property
    def best(self) -> PatternAlternative:
        """The model with the best score."""
        return self.ranked[0]


def recommend(
    fingerprint: Fingerprint, samples: Sequence[PatternSample], settings: PatternSettings | None = None
) -> Recommendation | None:
    """Return the recommendation of the most similar samples; ``None`` without samples. Ties keep their order."""
    if not samples:
        return None
    nearest = heapq.nlargest(NEAREST, samples, key=lambda sample: similarity(fingerprint, sample.fingerprint))
    groups: dict[str, list[PatternSample]] = {}
    for sample in nearest:
        groups.setdefault(sample.primary_model, []).append(sample)
    efficiency = _efficiencies({model: _mean_cost(group) for model, group in groups.items()})
    weight = (settings or PatternSettings()).cost_weight
    ranked = [
        PatternAlternative(
            model=model,
            score=(1 - weight) * _mean_success(group) + weight * efficiency[model],
            sample_size=sum(sample.sample_size for sample in group),
        )
        for model, group in groups.items()
    ]
    ranked.sort(key=lambda alternative: -alternative.score)
    top, second = ranked[0].score, ranked[1].score if len(ranked) > 1 else 0.0
    return Recommendation(ranked=tuple(ranked), confidence=(top - second) / top if top else 0.0)


def _mean_success(group: list[PatternSample]) -> float:
    size = sum(sample.sample_size for sample in group)
    return sum(sample.success * sample.sample_size for sample in group) / size


def _mean_cost(group: list[PatternSample]) -> Decimal | None:
    costs = [(sample.cost_usd, sample.sample_size) for sample in group if sample.cost_usd is not None]
    size = sum(count for _, count in costs)
    return sum((cost * count for cost, count in costs), Decimal(0)) / size if size else None


def _efficiencies(costs: dict[str, Decimal | None]) -> dict[str, float]:
    """Return the relative cheapness of each model: 1 for the cheapest, 0 for the most expensive or unknown."""
    known_costs = [cost for cost in costs.values() if cost is not None]
    low, high = min(known_costs, default=Decimal(0)), max(known_costs, default=Decimal(0))
    if low == high:
        return dict.fromkeys(costs, 0.0)
    return {model: 0.0 if cost is None else float((high - cost) / (high - low)) for model, cost in costs.items()}
