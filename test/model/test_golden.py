# SPDX-License-Identifier: Apache-2.0
"""Every family compared with transformers' stored answers."""
import pytest

import golden


@pytest.mark.parametrize("family", golden.families())
def test_float32_equals_transformers(family):
    golden.check_exact(family)


@pytest.mark.parametrize("family", golden.families())
def test_rounded_is_as_good_as_transformers_own(family):
    assert golden.check_rounded(family) <= 2.0


@pytest.mark.parametrize("family", golden.families())
def test_float32_without_the_prompts_scores(family):
    golden.check_exact_unscored(family)
    golden.check_exact_unscored(family, 1e-3, *golden.CHUNKS, *golden.TWO_THREADS)


@pytest.mark.parametrize("family", golden.families())
def test_rounded_without_the_prompts_scores(family):
    assert golden.check_rounded_unscored(family, *golden.CHUNKS) <= 2.0
