"""How answers are written down."""

import json
from typing import Any

from fastapi.responses import JSONResponse


class Ascii(JSONResponse):
    """JSON in ASCII: a string from a request may hold half a character, which UTF-8 has no bytes for."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
