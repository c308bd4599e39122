"""Class labels, hard or soft, as tables from which items are drawn in proportion to their probabilities.

Drawing uses no rejection and no loop over items: cumulative weights are computed once, and uniform random numbers are
looked up in them. Only non-zero probabilities are stored, so a million groups cost no more than ten classes.
"""

from typing import Any

import torch
from torch import Generator, Tensor

from aleator.foundation import reject, require, require_class_numbers

_ROW_TOLERANCE = 1e-4  # for the sum of a row; rows are then divided by their sum


class LabelTable:
    """The non-zero class probabilities of N items, sorted for drawing.

    An entry e is one such probability p[e], of the item item[e] and the class class_of[e]. Entries are sorted by
    class, then by item. `weight_to[e]` is the sum of p up to and including e, so each class owns an interval of it.
    `of_item` lists the entries sorted by item. In the cumulative sum `share_to` of their probabilities, item i owns
    the interval [i, i + 1).

    Args:
        labels: Whole numbers (N,), or probabilities (N, C) whose rows sum to 1.
        device: Where the tables live and items are drawn.
    """

    def __init__(self, labels: Tensor, device: torch.device):
        item, class_of, p, self.items, self.classes = _nonzero_entries(labels)
        self.entries = len(item)
        order = torch.argsort(class_of * self.items + item)  # by class, then item: one int64 for each pair
        item, class_of, p = item[order], class_of[order], p[order]
        count = torch.bincount(class_of, minlength=self.classes)
        last = count.cumsum(0) - 1
        weight_to = p.cumsum(0)
        before_class = torch.cat([p.new_zeros(1), weight_to])[last - count + 1]
        self._mass = weight_to[last] - before_class  # (C,)
        self._count = count
        by_item = torch.argsort(item * self.classes + class_of)
        item_last = torch.bincount(item, minlength=self.items).cumsum(0) - 1

        # The tables that drawing looks up, on the device.
        self.p, self.item, self.class_of = p.to(device), item.to(device), class_of.to(device)
        self.weight_to, self.before_class = weight_to.to(device), before_class.to(device)
        self.mass, self.first, self.last = self._mass.to(device), (last - count + 1).to(device), last.to(device)
        self.of_item, self.share_to = by_item.to(device), p[by_item].cumsum(0).to(device)
        self.item_last = item_last.to(device)
        self.item_first = (torch.cat([item_last.new_full((1,), -1), item_last[:-1]]) + 1).to(device)
        # The sum of 1 - P(c|j) over items j < item[e], moved to the interval [c N, (c + 1) N) of its class c.
        inside = weight_to - p - before_class[class_of]
        self.negative_to = (item - inside + (class_of * self.items).double()).to(device)

    @property
    def hard(self) -> bool:
        """Whether every item is of one class for certain."""
        return self.entries == self.items

    def classes_of_items(self) -> Tensor:
        """The class of each item, (N,); for hard labels."""
        return self.class_of[self.of_item]

    def probabilities(self) -> Tensor:
        """P(C|x) of all items, (N, C) in float64."""
        table = torch.zeros(self.items, self.classes, dtype=self.p.dtype, device=self.p.device)
        return table.index_put_((self.item, self.class_of), self.p)

    def draw_entry(self, item: Tensor, generator: Generator | None) -> Tensor:
        """Draw an entry (B,) of each item (B,) in proportion to its probabilities: a class c ~ P(C|x)."""
        if self.hard:  # one entry per item, nothing to draw
            return self.of_item[item]
        u = self._uniform(item.shape, generator)
        place = torch.searchsorted(self.share_to, item + u, right=True)
        return self.of_item[place.clamp(self.item_first[item], self.item_last[item])]

    def draw_member(self, entry: Tensor, with_itself: bool, generator: Generator | None) -> Tensor:
        """Draw an item (B,) for each entry (B,) in proportion to P(C=c|x), where c is the entry's class."""
        class_ = self.class_of[entry]
        u = self._uniform(entry.shape, generator)
        if with_itself:
            target = self.before_class[class_] + u * self.mass[class_]
        else:  # skip the entry's own interval
            own = self.p[entry]
            target = self.before_class[class_] + u * (self.mass[class_] - own)
            target = torch.where(target >= self.weight_to[entry] - own, target + own, target)
        place = torch.searchsorted(self.weight_to, target, right=True)
        return self.item[place.clamp(self.first[class_], self.last[class_])]

    def draw_negative(self, class_: Tensor, count: int, generator: Generator | None) -> Tensor:
        """Draw items (B, count) for each class c (B,) in proportion to 1 - P(C=c|x).

        The weights of class c sum to N - sum_x P(c|x). v is uniform in this mass. Items without an entry in the class
        have weight 1. So the last entry of the class that starts at or before v is looked up: v falls on its item, or
        a whole number of items after it.
        """
        class_ = class_[:, None]
        u = self._uniform((len(class_), count), generator)
        base = (class_ * self.items).double()
        v = u * (self.items - self.mass[class_])
        entry = torch.searchsorted(self.negative_to, base + v, right=True) - 1
        after_first = entry >= self.first[class_]  # else v lies before the first entry of the class
        entry = entry.clamp(self.first[class_], self.last[class_])
        beyond = v - (self.negative_to[entry] - base) - (1 - self.p[entry])
        later = torch.where(beyond < 0, 0.0, beyond.floor() + 1).long()
        negative = torch.where(after_first, self.item[entry] + later, v.long())
        return negative.clamp(0, self.items - 1)

    def require_negatives(self) -> None:
        """Raise if a class holds every item, so that it has no negatives."""
        alone = (self.items - self._mass) < 1e-9 * self.items
        if bool(alone.any()):
            class_ = int(alone.int().argmax())
            reject("labels", f"class {class_}", "holds every item, so it has no negatives", "pass two classes or more")

    def require_partners(self) -> None:
        """Raise if a class has one item alone, so that it has no other positive."""
        single = self._count < 2
        if bool(single.any()):
            class_ = int(single.int().argmax())
            row = int(self.item[self.first[class_]])
            way_out = "leave it out, or pass with_itself=True"
            reject("labels", f"class {class_}", f"row {row} is its only item", way_out)

    def _uniform(self, shape: Any, generator: Generator | None) -> Tensor:
        # 53 bits: with float32's 24, a large collection would have items that are never drawn.
        return torch.rand(shape, generator=generator, dtype=torch.float64, device=self.p.device)


def _nonzero_entries(labels: Tensor) -> tuple[Tensor, Tensor, Tensor, int, int]:
    """Item, class and probability of every non-zero probability, and the numbers of items and classes."""
    labels = labels.detach().cpu()
    n = len(labels)
    if labels.dim() == 1:
        require_whole("labels", labels)
        classes, class_of = labels.long().unique(return_inverse=True)
        return torch.arange(n), class_of, torch.ones(n, dtype=torch.float64), n, len(classes)
    table = labels.dim() == 2 and labels.is_floating_point()
    problem, way_out = "neither whole numbers (N,) nor probabilities (N, C)", "divide votes by their sum, row by row"
    require(table, "labels", labels, problem, way_out)
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
        class_ = int(empty.int().argmax())
        reject("labels", f"class {class_}", "no item has any probability of it", "leave the column out")
    item, class_of = p.nonzero(as_tuple=True)
    return item, class_of, (p / total)[item, class_of], n, p.shape[1]


def as_labels(labels: Any, items: int) -> Tensor:
    """Labels of items as a tensor, (N,) or (N, C).

    Raises:
        ValueError: If they are names, or there are not as many as `items`.
    """
    require_class_numbers(labels)
    labels = torch.as_tensor(labels)
    way_out = "pass one label, or one row of probabilities, for each"
    require(len(labels) == items, "labels", len(labels), f"there are {items} inputs", way_out)
    return labels


def check_pairs(pairs: Any, items: int, itself: str | None) -> Tensor:
    """Pairs of item numbers (P, 2), checked, as int64.

    Args:
        pairs: The pairs.
        items: Number of items.
        itself: The way out that the error names if an item is paired with itself. None: that is allowed.
    """
    pairs = torch.as_tensor(pairs)
    shape = tuple(pairs.shape)
    is_list = pairs.dim() == 2 and shape[1] == 2 and shape[0] > 0
    require(is_list, "pairs", shape, "not a list of pairs", "pass item numbers of shape (P, 2)")
    require_whole("pairs", pairs)
    pairs = pairs.long()
    outside = ((pairs < 0) | (pairs >= items)).any(1)
    require_rows("pairs", pairs, ~outside, f"names an item outside 0 .. {items - 1}", "number items from 0")
    if itself is not None:
        require_rows("pairs", pairs, pairs[:, 0] != pairs[:, 1], "pairs an item with itself", itself)
    return pairs


def require_whole(name: str, value: Tensor) -> None:
    """Raise unless a tensor has an integer type."""
    whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    require(whole, name, value.dtype, "not whole numbers", "pass integers")


def require_rows(name: str, value: Tensor, ok: Tensor, problem: str, way_out: str) -> None:
    """Raise with the first row of `value` for which `ok` (N,) is false."""
    if not bool(ok.all()):
        row = int((~ok).int().argmax())
        reject(f"{name}[{row}]", value[row].tolist(), problem, way_out)
