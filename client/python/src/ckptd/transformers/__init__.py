"""from_pretrained of Hugging Face transformers, with the weights from the daemons.

    with ckptd.patch():
        model = AutoModelForCausalLM.from_pretrained("/models/llama", dtype="bfloat16")

Importing this package does not import transformers; `patch` does.
"""

from ._patch import Patch, patch, unpatch

__all__ = ["Patch", "patch", "unpatch"]
