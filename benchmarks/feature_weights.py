#!/usr/bin/env python3
"""Weights of features in the likeness of samples (`convscope/prediction/learners/weights.py`). No GPU is needed.

python benchmarks/feature_weights.py data/h200                                  four minutes on one core
python benchmarks/feature_weights.py data/h200 --without convnext regnet        errors of these kinds by weights that
                                                                                were learned without them

Steps of gradients make what the process misses of held-out samples smaller: of fifths of the shapes, and of kinds of
networks, in turn. Each step takes one engine in one arithmetic, and some of its shapes. Errors are those of processes
of at most 2,500 samples, by weights that are all alike and by those learned.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from convscope.dataset import calls, samples, splits
from convscope.prediction import predictor
from convscope.prediction.features import CATEGORIES, Features, features
from convscope.prediction.learners import costs, process

Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
SOME, JUDGED, FOLDS = 900, 2_500, 5
"""Samples of a step, samples of a process that is judged, and parts that are held out in turn."""
FIRST_ALIKE, FIRST_NOISE, RATE = 1.0, 0.01, 0.04


class Data:
    """Samples of a set with what the process is to give for each, and their places."""

    def __init__(self, folder: Path, without: Sequence[str]) -> None:
        path = folder / "samples.parquet"
        self.frame = predictor.usable(samples.read([path]), "time")
        found = splits.splits(self.frame, "family", calls.read(calls.beside(path)))
        self.kinds = {each.name.removeprefix("family "): (each.held_back, each.learned) for each in found}
        if unknown := {*without} - {*self.kinds}:
            raise SystemExit(f"--without {' '.join(sorted(unknown))}: choose among {' '.join(self.kinds)}")
        self.learned = np.all([np.ones(len(self.frame), bool), *(self.kinds[kind][1] for kind in without)], axis=0)
        given, self.shapes = features(self.frame, {}), splits.labels(self.frame, "layer")
        self.left = torch.tensor(self._left_over(given))
        numbers = given.values.drop(columns=list(CATEGORIES))
        spread = numbers.std(ddof=0)
        self.names = [name for name in map(str, numbers) if spread[name] > 0]
        scaled = (numbers[self.names] - numbers[self.names].mean()) / spread[self.names]
        self.scaled = torch.tensor(scaled.to_numpy(float))
        self.codes = [torch.tensor(pd.factorize(given.values[name])[0]) for name in ("engine", "algorithm")]
        groups = process.groups_of(given, self.frame)
        every = ((name, np.flatnonzero(groups == name)) for name in sorted({*groups}))
        self.groups = {name: rows for name, rows in every if len(rows) >= process.FEWEST}

    def _left_over(self, given: Features) -> npt.NDArray[np.float64]:
        """Return what smooth costs leave over that did not learn a row's shape, nor kinds that are left out."""
        wanted, rows = predictor.logarithms(self.frame, "time", given), self.learned
        number_of = splits.folds(self.shapes[rows])
        found = costs.fit(given, self.frame, wanted, by_parts=True, learned=rows).predict(
            given, self.frame, is_smooth=True
        )
        own = self.frame.iloc[np.flatnonzero(rows)]
        _, found[rows] = costs.crossed(given.rows(rows), own, wanted[rows], by_parts=True, number_of=number_of)
        return wanted - found

    def some(self, rows: Rows, most: int, seed: int = 0) -> Rows:
        """Return at most so many of these rows, of whole shapes that are drawn by chance."""
        order = sorted({*self.shapes[rows]}, key=lambda shape: zlib.crc32(f"{seed} {shape}".encode()))
        sizes = pd.Series(self.shapes[rows]).value_counts()[order].cumsum()
        return rows[np.isin(self.shapes[rows], [*sizes.index[sizes <= most]])]


class Likeness(torch.nn.Module):
    """Likeness of samples, as `process` has it; what can be learned is kept as logarithms."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data, self.number = data, {name: number for number, name in enumerate(data.groups)}
        self.weights = torch.nn.Parameter(torch.zeros(len(data.names)))
        self.alike = torch.nn.Parameter(torch.full((3,), float(np.log(FIRST_ALIKE))))
        self.noise = torch.nn.Parameter(torch.full((len(data.groups),), float(np.log(FIRST_NOISE))))

    def forward(self, one: Rows, other: Rows) -> torch.Tensor:
        """Return how alike each of some rows is to each of others."""
        a, b = (self.data.scaled[rows] * self.weights.exp() for rows in (one, other))
        squares = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
        far = squares.clamp_min(1e-12).sqrt() * (3**0.5 / process.LENGTH)
        any_two, of_engine, of_algorithm = self.alike.exp()
        same_engine, same_algorithm = (code[one][:, None] == code[other] for code in self.data.codes)
        found: torch.Tensor = (
            (1 + far) * (-far).exp() * (any_two + of_engine * same_engine + of_algorithm * same_algorithm)
        )
        return found

    def of_group(self, rows: Rows, name: str) -> torch.Tensor:
        """Return how alike rows of a group are to each other, with its noise."""
        found: torch.Tensor = self(rows, rows) + torch.eye(len(rows)) * self.noise[self.number[name]].exp()
        return found

    def missed(self, rows: Rows, name: str, folds: npt.NDArray[np.intp]) -> torch.Tensor:
        """Return the mean absolute rest of rows of a group, each predicted without its fold."""
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.of_group(rows, name)))
        weights = inverse @ (self.data.left[rows] - self.data.left[rows].mean())
        parts = (torch.tensor(np.flatnonzero(folds == fold)) for fold in np.unique(folds))
        return torch.cat([torch.linalg.solve(inverse[part][:, part], weights[part]) for part in parts]).abs().mean()

    @torch.no_grad()
    def errors(self, learned: Mask, asked: Mask) -> npt.NDArray[np.float64]:
        """Return |predicted / measured - 1| of rows by processes of others, where there are enough."""
        found = []
        for name, rows in self.data.groups.items():
            known, out = self.data.some(rows[learned[rows]], JUDGED), rows[asked[rows]]
            if len(known) >= process.FEWEST and len(out):
                mean = self.data.left[known].mean()
                factor = torch.linalg.cholesky(self.of_group(known, name))
                weights = torch.cholesky_solve((self.data.left[known] - mean)[:, None], factor)[:, 0]
                found.append((mean + self(out, known) @ weights - self.data.left[out]).numpy())
        pct: npt.NDArray[np.float64] = np.abs(np.expm1(np.concatenate(found)))
        return pct


def learn(made: Likeness, learned: Mask, steps: int, free: Sequence[torch.nn.Parameter]) -> None:
    """Learn free parameters from these rows."""
    data, draw = made.data, np.random.default_rng(0)
    mine = {name: rows[learned[rows]] for name, rows in data.groups.items()}
    mine = {name: rows for name, rows in mine.items() if len(rows) >= process.FEWEST}
    sizes = np.array([*map(len, mine.values())], float)
    optimizer, seen, began = torch.optim.Adam(free, lr=RATE), list[float](), time.perf_counter()
    kinds = data.frame["family"].fillna("").to_numpy(dtype=object)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * (1 - 0.9 * step / steps)
        name = draw.choice([*mine], p=sizes / sizes.sum())
        rows = data.some(mine[name], SOME, step)
        labels = data.shapes[rows] if step % 2 else np.where(kinds[rows] == "", data.shapes[rows], kinds[rows])
        folds = np.array([zlib.crc32(f"{step} {label}".encode()) % FOLDS for label in labels])
        optimizer.zero_grad()
        loss = made.missed(rows, str(name), folds)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        if step % 50 == 49:
            took = time.perf_counter() - began
            print(f"{step + 1} steps, {took:.0f} s: {np.mean(seen[-50:]):.4f}", file=sys.stderr, flush=True)


def lines(data: Data, kinds: Sequence[str], ways: Mapping[str, Likeness]) -> Iterator[str]:
    """Yield the errors of kinds of networks, which were not learned, by each way."""
    for kind in kinds:
        held_back, learned = data.kinds[kind]
        for way, made in ways.items():
            pct = 100 * made.errors(learned, held_back)
            yield f"{kind:14} {way:8} {len(pct):6} samples, MAPE {pct.mean():5.1f} %, median {np.median(pct):5.1f} %"


def main() -> int:
    """Learn weights and print them, and the errors of kinds that they were learned without."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, metavar="FOLDER")
    options.add_argument(
        "--without", nargs="+", default=[], metavar="KIND", help="kinds of networks to leave out, and judge"
    )
    options.add_argument("--steps", type=int, default=500, metavar="N")
    asked = options.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    data = Data(asked.folder, asked.without)
    made, equal = Likeness(data), Likeness(data)
    learn(made, data.learned, asked.steps, [*made.parameters()])
    if asked.without:
        learn(equal, data.learned, asked.steps, [equal.alike, equal.noise])
    print({name: round(value, 2) for name, value in zip(data.names, made.weights.exp().tolist(), strict=True)})
    print("alike:", *(f"{value:.2f}" for value in made.alike.exp().tolist()))
    for line in lines(data, asked.without, {"equal": equal, "learned": made}):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
