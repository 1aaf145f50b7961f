"""Small models for transformers' ModelTesterMixin.

Its source holds the mix-in without the tests of single models, and without what the mix-in
takes from other folders for tests of exporting and generating: empty classes stand for that.
"""

import os
import sys
import types
import unittest

import torch
import transformers


def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made


module("theirs", __path__=[os.environ["CKPTD_FOREIGN_TESTS"]])
module("theirs.exporters", __path__=[])
module("theirs.exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
module("theirs.generation", __path__=[])
module("theirs.generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))

from theirs.test_modeling_common import ModelTesterMixin  # noqa: E402

SIZES = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}


class Small:
    """What the mix-in asks about a model."""

    batch_size, seq_length, is_training = 3, 7, True

    def __init__(self, kind, **more):
        self.kind, self.options = kind, {**SIZES, **more}
        vars(self).update(self.options)

    def get_config(self):
        return transformers.AutoConfig.for_model(self.kind, **self.options)

    def prepare_config_and_inputs_for_common(self):
        tokens = torch.randint(3, 90, (self.batch_size, self.seq_length))
        return self.get_config(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


class LlamaTest(ModelTesterMixin, unittest.TestCase):
    model_tester = Small("llama", num_key_value_heads=2)
    all_model_classes = (transformers.LlamaModel, transformers.LlamaForCausalLM)


class TiedTest(ModelTesterMixin, unittest.TestCase):
    model_tester = Small("gpt2")
    all_model_classes = (transformers.GPT2Model, transformers.GPT2LMHeadModel)


class ExpertsTest(ModelTesterMixin, unittest.TestCase):
    model_tester = Small("mixtral", num_local_experts=4, num_key_value_heads=2)
    all_model_classes = (transformers.MixtralModel, transformers.MixtralForCausalLM)


class BertTest(ModelTesterMixin, unittest.TestCase):
    model_tester = Small("bert")
    all_model_classes = (transformers.BertModel, transformers.BertForMaskedLM)
