"""The figures that the paper reports (Kirchhof, Kasneci, Oh, ICML 2023).

`PAPER` maps a row of our tables, (experiment, setting, loss), to metrics: name -> (mean, standard error). The error is
None if the paper does not report it. What the paper calls RMSE is a mean absolute error in its code, so it is listed
here under the names of mean absolute errors.
"""

from aleator.experiments.cifar.tables import CIFAR_PAPER

Figures = dict[str, tuple[float, float | None]]

_AMBIGUOUS: Figures = {
    "mu_mae": (0.04, 0.00),
    "mu_rank": (0.99, 0.00),
    "kappa_mae": (6.15, 0.61),
    "kappa_rank": (0.82, 0.04),
}

_CLEAR: Figures = {
    "mu_mae": (0.05, 0.00),
    "mu_rank": (0.98, 0.00),
    "kappa_mae": (125.02, 10.64),
    "kappa_rank": (0.64, 0.04),
}

_ELK: Figures = {
    "mu_mae": (0.02, 0.00),
    "mu_rank": (1.00, 0.00),
    "kappa_mae": (21.70, 0.31),
    "kappa_rank": (0.92, 0.00),
}

PAPER: dict[tuple[str, str, str], Figures] = {
    **CIFAR_PAPER,
    ("recovery", "ambiguous", "mcinfonce"): _AMBIGUOUS,
    ("recovery", "clear", "mcinfonce"): _CLEAR,
    ("recovery", "injective", "mcinfonce"): {"mu_mae": (0.05, 0.01), "mu_rank": (0.98, 0.00)},
    ("circle", "dim-2", "mcinfonce"): {
        "mu_mae": (0.05, 0.00),
        "mu_rank": (1.00, 0.00),
        "kappa_mae": (2.89, 0.56),
        "kappa_rank": (0.82, 0.05),
    },
    ("samples", "samples-4", "mcinfonce"): {"kappa_rank": (0.77, None)},
    ("samples", "samples-16", "mcinfonce"): {"kappa_mae": (4.55, None)},
    ("samples", "samples-512", "mcinfonce"): {"kappa_mae": (6.15, 0.61), "kappa_rank": (0.82, 0.04)},
    ("families", "ambiguous", "mcinfonce"): {
        "mu_mae": (0.04, 0.00),
        "mu_rank": (0.99, 0.00),
        "spread_mae": (0.05, 0.00),
        "spread_rank": (0.75, 0.04),
    },
    ("families", "gaussian", "mcinfonce"): {
        "mu_mae": (0.04, 0.00),
        "mu_rank": (0.99, 0.00),
        "spread_mae": (0.04, 0.00),
        "spread_rank": (0.70, 0.05),
    },
    ("families", "laplace", "mcinfonce"): {
        "mu_mae": (0.05, 0.01),
        "mu_rank": (0.98, 0.00),
        "spread_mae": (0.02, 0.00),
        "spread_rank": (0.66, 0.06),
    },
    ("losses", "ambiguous", "hib"): {
        "mu_mae": (0.18, 0.02),
        "mu_rank": (0.82, 0.03),
        "kappa_mae": (1e14, 1e14),
        "kappa_rank": (-0.02, 0.09),
    },
    ("losses", "ambiguous", "elk"): _ELK,
    ("losses", "ambiguous, fitted constants", "elk"): _ELK,
    ("losses", "ambiguous", "mcinfonce"): _AMBIGUOUS,
    ("losses", "ambiguous", "infonce"): {"mu_mae": (0.83, 0.00), "mu_rank": (0.99, 0.00)},
    ("infonce", "ambiguous", "mcinfonce"): {"mu_mae": (0.04, 0.00), "mu_rank": (0.99, 0.00)},
    ("infonce", "ambiguous", "infonce"): {"mu_mae": (0.83, 0.00), "mu_rank": (0.99, 0.00)},
    ("encoder-dim", "encoder-dim-10", "mcinfonce"): {"kappa_rank": (0.82, 0.04)},
    ("high-dim", "dim-10", "mcinfonce"): {"kappa_rank": (0.82, 0.04)},
    ("shared-backbone", "ambiguous", "mcinfonce"): _AMBIGUOUS,
    ("shared-backbone", "shared backbone", "mcinfonce"): {
        "mu_mae": (0.04, 0.00),
        "mu_rank": (0.99, 0.00),
        "kappa_mae": (7.31, 1.53),
        "kappa_rank": (0.87, 0.02),
    },
}


def paper_figure(experiment: str, setting: str, loss: str, metric: str) -> tuple[float, float | None] | None:
    """The paper's (mean, error) for a row and metric, or None.

    The paper has no exact loss. The figures of MCInfoNCE, which it replaces, are shown beside it. Corrected rows stand
    beside the figures of the row that they correct, and so do the rows of `published`.
    """
    setting = setting.removesuffix(", corrected")
    if experiment == "published":
        experiment = "losses" if loss == "elk" else "recovery"
        setting = "clear" if setting.endswith(", clear") else "ambiguous"
    for name in (loss, "mcinfonce") if loss == "exact" else (loss,):
        figures = PAPER.get((experiment, setting, name))
        if figures is not None:
            return figures.get(metric)
    return None
