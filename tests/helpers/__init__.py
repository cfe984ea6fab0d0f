"""Helpers shared by tests: small kernel sets, dense references, exact optima, the command line."""

import pytest

pytest.register_assert_rewrite("helpers.command_line")  # modules may load it as a plugin later
