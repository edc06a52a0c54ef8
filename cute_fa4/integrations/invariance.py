"""batch_invariant= of the adapters: as the engine around them asks, by its environment variable.

    vLLM      VLLM_BATCH_INVARIANT, a number that is not 0; its backends then also pass num_splits=1 (vllm/envs.py)
    SGLang    SGLANG_ENABLE_DETERMINISTIC_INFERENCE, which the server sets for --enable-deterministic-inference
              (python/sglang/srt/environ.py has the accepted words)

None where neither asks: CUTE_FA4_BATCH_INVARIANT decides, as in any other call.
"""

from __future__ import annotations

import os

VLLM, SGLANG = "VLLM_BATCH_INVARIANT", "SGLANG_ENABLE_DETERMINISTIC_INFERENCE"
# Both engines' words, in lower case. vLLM takes any number, SGLang takes no empty value.
_OFF, _ON = ("", "0", "false", "no", "n"), ("1", "true", "yes", "y")


def asked_by(*variables: str) -> bool | None:
    """True if one of the variables asks for batch invariance, else None. ValueError for a word that no engine has."""
    return True if any([_is_on(variable) for variable in variables]) else None


def _is_on(variable: str) -> bool:
    value = os.environ.get(variable, "").lower()
    if value in _OFF:
        return False
    if value in _ON or (variable == VLLM and value.lstrip("+-").isdecimal()):
        return True
    raise ValueError(f"{variable}={value!r}; accepted: {', '.join((*_ON, *_OFF[1:]))}")
