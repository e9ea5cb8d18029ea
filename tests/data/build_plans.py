"""Writes plans.json from the code as it is; read the diff.

``python -m tests.data.build_plans``
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakes.plans import records

if __name__ == "__main__":
    text = json.dumps(records(), indent=1, ensure_ascii=False) + "\n"
    Path(__file__).with_name("plans.json").write_text(text)
