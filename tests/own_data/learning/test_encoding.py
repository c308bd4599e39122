"""Items that are encoded once are those that the encoder would give each time."""

import numpy as np
import pytest
import torch

from aleator.data import Inputs
from aleator.encoders import MLP, Chain, Encoder, Standardise
from aleator.own_data.learning.encoding import encode_items
from aleator.own_data.learning.preparation import PreparedTraining


def prepared() -> PreparedTraining:
    rows = torch.randn(1200, 4)  # more than two batches
    encoder = Encoder(Chain([Standardise(4).fit(rows), MLP(4, [8])]), 3)
    return PreparedTraining(Inputs("features", features=4), encoder.eval(), rows)


def test_posteriors_and_views_are_found_by_item_number():
    training = prepared()
    chosen = np.random.default_rng(0).permutation(1200)[:1100]
    encoded = encode_items(training, np.concatenate([chosen, chosen[:10]]))
    asked = chosen[[5, 3, 900, 3]]
    expected = training.posteriors(asked)
    torch.testing.assert_close(encoded.posteriors(asked).mu, expected.mu)
    torch.testing.assert_close(encoded.posteriors(asked).kappa, expected.kappa)
    standardised = training.encoder.backbone.parts[0](training.items[torch.as_tensor(asked)])
    torch.testing.assert_close(encoded.views_of(asked)["features"], standardised)


@pytest.mark.parametrize("number", [2, 11])
def test_an_item_that_was_not_encoded_is_not_mistaken_for_another(number):
    encoded = encode_items(prepared(), np.array([1, 3, 10]))
    with pytest.raises(AssertionError, match="not encoded"):
        encoded.posteriors(np.array([number]))
