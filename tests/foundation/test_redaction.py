import pytest

from aleator.foundation import redacted


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann:hunter2@db:5432/items#x",
        "cannot connect to postgres://ann:hunter2@db/items?sslmode=require now",
        "postgresql://db/items?user=ann&password=hunter2&sslmode=require",
        "host=db user=ann password=hunter2 dbname=items",
        "password='hunter2' host=db",
        "Authorization: Bearer hunter2",
        "aleator serve index --token hunter2 --port 80",
        "aleator serve index --token=hunter2",
        "GET /?token=hunter2 HTTP/1.1",
        "postgresql://ann:p@ss:hunter2@db/items",
    ],
)
def test_no_secret_is_left_and_the_rest_stays(text):
    shown = redacted(text)
    assert "hunter2" not in shown
    assert "***" in shown
    for word in ("db", "items", "index", "sslmode", "--port 80", "HTTP/1.1"):
        assert (word in shown) == (word in text)


def test_known_secrets_are_hidden_in_both_spellings():
    assert redacted("p%40ss and p@ss", "p%40ss") == "*** and ***"


@pytest.mark.parametrize("text", ["photos.safetensors = 3: too small; pass 4", "http://localhost:8000/", "a:b@c"])
def test_text_without_secrets_is_unchanged(text):
    assert redacted(text) == text
