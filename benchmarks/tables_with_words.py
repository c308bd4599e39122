"""`AleatorClassifier` on tables with words and empty cells, read as `aleator train` reads them, beside scikit-learn.

python -m benchmarks.public_tables words build/words
python -m benchmarks.tables_with_words build/words

Each .csv file of the folder is a table: a header, columns of numbers or words, and the class in the last column. The
splits are those of `benchmarks.tables`. Ours chooses the features of each column from the training rows. The rivals get
what scikit-learn recommends: the median in empty cells, with a column that marks them, and one column for each word
that at least 1 % of the rows have; gradient boosting sees empty cells as they are. No default was chosen on these
tables, but on the numbers of three that are among the other tables of R: attrition, credit_data and penguins.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # each process has one core

from pathlib import Path
from typing import Any

import numpy as np
import torch

import aleator as al
from aleator.own_data.collection.table_columns import Cells, choose_columns, read_numbers, read_words
from aleator.own_data.collection.tables import read_table as read_cells_of_file
from benchmarks.tables import OURS, classifiers, compare_classifiers, run, some_rows

_LEAST_SHARE = 0.01  # of the rows, for a word of its own


class OursOnColumns:
    """`AleatorClassifier` after aleator's own reading of columns. X holds a row of cells for each item."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> "OursOnColumns":
        """Choose features from the training rows, and learn."""
        self.chosen, _ = choose_columns(_cells(X))
        self.classifier = al.AleatorClassifier(random_state=0).fit(self._features(X), y)
        self.classes_ = self.classifier.classes_
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Class probabilities of rows, (n, C)."""
        return self.classifier.predict_proba(self._features(X))

    def _features(self, X: np.ndarray) -> np.ndarray:
        cells = _cells(X)
        return np.concatenate([column.features(cells[column.name]) for column in self.chosen], 1)


def _cells(X: np.ndarray) -> dict[str, Cells]:
    """Columns by number, as `choose_columns` takes them."""
    columns: dict[str, Cells] = {}
    for j, column in enumerate(X.T):
        columns[str(j)] = list(column) if isinstance(column[0], str) else column.astype(np.float64)
    return columns


def rivals(X: np.ndarray) -> dict[str, Any]:
    """Name -> untrained classifier of scikit-learn, behind its own reading of these columns."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    words = [j for j in range(X.shape[1]) if isinstance(X[0, j], str)]
    numbers = [j for j in range(X.shape[1]) if j not in words]
    of_words = OneHotEncoder(min_frequency=_LEAST_SHARE, handle_unknown="infrequent_if_exist", sparse_output=False)
    as_numbers = FunctionTransformer(np.asarray, kw_args={"dtype": np.float64})
    filled = make_pipeline(as_numbers, SimpleImputer(strategy="median", add_indicator=True))

    def behind(model: Any, of_numbers: Any) -> Any:
        return make_pipeline(ColumnTransformer([("numbers", of_numbers, numbers), ("words", of_words, words)]), model)

    return {
        name: behind(model, as_numbers if name == "gradient boosting" else filled)
        for name, model in classifiers().items()
        if name != OURS
    }


def read_columns(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows of cells (N, F), numbers (NaN where empty) or words, and classes (N,)."""
    table = read_cells_of_file(path)
    y = np.array(table.column(table.header[-1]))
    columns = []
    for name in table.header[:-1]:
        numbers = read_numbers(table.column(name), table.number)
        columns.append(numbers.values if numbers.are_most else read_words(table.column(name)))
    X = np.array([np.array(column, object) for column in columns], object).T
    return some_rows(X, y)


def compare(path: Path) -> dict[str, Any]:
    """One table: its size, and each classifier's measures, one for each split."""
    torch.set_num_threads(1)
    X, y = read_columns(path)
    return compare_classifiers(path.stem, X, y, {OURS: OursOnColumns(), **rivals(X)})


if __name__ == "__main__":
    run(compare, __doc__, "tables-with-words")
