"""Class labels, hard or soft, as tables from which items are drawn in proportion to their probabilities.

Nothing is drawn by rejection and nothing loops over items: cumulative weights, made once, are searched for uniform
numbers. The tables hold the non-zero probabilities alone, so a million groups cost no more than ten classes.
"""

from typing import Any

import torch
from torch import Generator, Tensor

from aleator.foundation import reject, require

_ROW_TOLERANCE = 1e-4  # of a row's sum; rows are brought to 1 exactly


class LabelTable:
    """The non-zero class probabilities of N items, arranged to be drawn from.

    An entry e is one such probability: p(e), of an item i(e) and a class c(e). Entries lie in order of class and then
    item, and `weight_to[e]` sums p up to and with e, so the class c owns an interval of it. `of_item` lists the entries
    in order of item, where the interval [i, i + 1) belongs to item i.
    """

    def __init__(self, labels: Tensor, device: torch.device):
        item, kind, p, self.items, self.classes = _nonzero_entries(labels)
        self.entries = len(item)
        order = torch.argsort(kind * self.items + item)  # by class, then item; an int64 for every pair
        item, kind, p = item[order], kind[order], p[order]
        count = torch.bincount(kind, minlength=self.classes)
        last = count.cumsum(0) - 1
        weight_to = p.cumsum(0)
        before_class = torch.cat([p.new_zeros(1), weight_to])[last - count + 1]
        self._mass = weight_to[last] - before_class  # (C,)
        self._count = count
        by_item = torch.argsort(item * self.classes + kind)
        item_last = torch.bincount(item, minlength=self.items).cumsum(0) - 1

        # What the draws look up, on the device.
        self.p, self.item, self.kind = p.to(device), item.to(device), kind.to(device)
        self.weight_to, self.before_class = weight_to.to(device), before_class.to(device)
        self.mass, self.first, self.last = self._mass.to(device), (last - count + 1).to(device), last.to(device)
        self.of_item, self.share_to = by_item.to(device), p[by_item].cumsum(0).to(device)
        self.item_last = item_last.to(device)
        self.item_first = (torch.cat([item_last.new_full((1,), -1), item_last[:-1]]) + 1).to(device)
        # The sum of 1 - P(c|j) over items j < i(e), moved to an interval [c N, (c + 1) N) of its class.
        inside = weight_to - p - before_class[kind]
        self.strange_to = (item - inside + (kind * self.items).double()).to(device)

    def draw_entry(self, item: Tensor, generator: Generator | None) -> Tensor:
        """An entry of each item (B,), in proportion to its probabilities: the item's class, c ~ P(C|x)."""
        if self.entries == self.items:  # hard labels: one entry per item, nothing to draw
            return self.of_item[item]
        u = self._uniform(item.shape, generator)
        place = torch.searchsorted(self.share_to, item + u, right=True)
        return self.of_item[place.clamp(self.item_first[item], self.item_last[item])]

    def draw_member(self, entry: Tensor, with_itself: bool, generator: Generator | None) -> Tensor:
        """For each entry (B,) an item in proportion to P(C=c|x), c the entry's class."""
        kind = self.kind[entry]
        u = self._uniform(entry.shape, generator)
        if with_itself:
            target = self.before_class[kind] + u * self.mass[kind]
        else:  # skip the entry's own stretch
            own = self.p[entry]
            target = self.before_class[kind] + u * (self.mass[kind] - own)
            target = torch.where(target >= self.weight_to[entry] - own, target + own, target)
        found = torch.searchsorted(self.weight_to, target, right=True)
        return self.item[found.clamp(self.first[kind], self.last[kind])]

    def draw_stranger(self, kind: Tensor, count: int, generator: Generator | None) -> Tensor:
        """For each class c (B,), `count` items in proportion to 1 - P(C=c|x); (B, count).

        Items without an entry in the class weigh 1. So of v, uniform in the class's strange mass N - sum_x P(c|x), the
        last entry that begins at or before v is looked up: v falls on its item, or a whole number of items later.
        """
        kind = kind[:, None]
        u = self._uniform((len(kind), count), generator)
        base = (kind * self.items).double()
        v = u * (self.items - self.mass[kind])
        found = torch.searchsorted(self.strange_to, base + v, right=True) - 1
        known = found >= self.first[kind]  # else v lies before the class's first entry
        found = found.clamp(self.first[kind], self.last[kind])
        beyond = v - (self.strange_to[found] - base) - (1 - self.p[found])
        later = torch.where(beyond < 0, 0.0, beyond.floor() + 1).long()
        stranger = torch.where(known, self.item[found] + later, v.long())
        return stranger.clamp(0, self.items - 1)

    def require_contrast(self) -> None:
        alone = (self.items - self._mass) < 1e-9 * self.items
        if bool(alone.any()):
            kind = int(alone.int().argmax())
            reject("labels", f"class {kind}", "holds every item, so it has no negatives", "pass two classes or more")

    def require_partners(self) -> None:
        single = self._count < 2
        if bool(single.any()):
            kind = int(single.int().argmax())
            row = int(self.item[self.first[kind]])
            reject("labels", f"class {kind}", f"row {row} is its only item", "leave it out, or pass with_itself=True")

    def _uniform(self, shape: Any, generator: Generator | None) -> Tensor:
        # 53 bits: with float32's 24, a large collection would have items that are never drawn.
        return torch.rand(shape, generator=generator, dtype=torch.float64, device=self.p.device)


def _nonzero_entries(labels: Tensor) -> tuple[Tensor, Tensor, Tensor, int, int]:
    """(item, class, probability) of every non-zero probability, and the numbers of items and of classes."""
    labels = labels.detach().cpu()
    n = len(labels)
    if labels.dim() == 1:
        require_whole("labels", labels)
        known, kind = labels.long().unique(return_inverse=True)
        return torch.arange(n), kind, torch.ones(n, dtype=torch.float64), n, len(known)
    require(
        labels.dim() == 2 and labels.is_floating_point(),
        "labels",
        labels,
        "neither whole numbers (N,) nor probabilities (N, C)",
        "divide votes by their number, row by row",
    )
    p = labels.double()
    require_rows("labels", p, torch.isfinite(p).all(1), "is not finite", "leave the item out")
    require_rows("labels", p, (p >= 0).all(1), "has a negative probability", "pass probabilities, not logits")
    total = p.sum(1, keepdim=True)
    off = (total[:, 0] - 1).abs() > _ROW_TOLERANCE
    if bool(off.any()):
        row = int(off.int().argmax())
        require_rows("labels", p, ~off, f"sums to {float(total[row]):.6g}, not 1", "divide each row by its sum")
    empty = p.sum(0) == 0
    if bool(empty.any()):
        kind = int(empty.int().argmax())
        reject("labels", f"class {kind}", "no item has any probability of it", "leave the column out")
    item, kinds = p.nonzero(as_tuple=True)
    return item, kinds, (p / total)[item, kinds], n, p.shape[1]


def require_whole(name: str, value: Tensor) -> None:
    whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    require(whole, name, value.dtype, "not whole numbers", "pass integers")


def require_rows(name: str, value: Tensor, ok: Tensor, problem: str, way_out: str) -> None:
    if not bool(ok.all()):
        row = int((~ok).int().argmax())
        reject(f"{name}[{row}]", value[row].tolist(), problem, way_out)
