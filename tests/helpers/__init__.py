"""What several tests need: small kernel sets, dense references, exact optima, the command line."""

import pytest

pytest.register_assert_rewrite("helpers.command_line")  # a module that names it as a plugin may be loaded later
