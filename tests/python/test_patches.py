"""patch() inside of patch(), of transformers and of accelerate alike."""

import gc
import sys
import types
import weakref

import ckptd
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")

import accelerate.accelerator  # noqa: E402
import accelerate.utils.modeling  # noqa: E402
import ckptd.accelerate  # noqa: E402
import ckptd.transformers  # noqa: E402
import transformers.core_model_loading  # noqa: E402
import transformers.modeling_utils  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.distributed.checkpoint import state_dict  # noqa: E402

PLACES = [accelerate, accelerate.accelerator, accelerate.big_modeling, accelerate.utils, accelerate.utils.modeling,
          accelerate.utils.fsdp_utils, state_dict, transformers.modeling_utils, transformers.core_model_loading,
          transformers.modeling_utils.PreTrainedModel]


def held():
    return [dict(vars(place)) for place in PLACES]


class Library:
    """One of the two, and what a call of it under patches comes to."""

    def __init__(self, package, read, folder):
        self.package, self._read, self.folder = package, read, folder
        self.file = str(folder / "m.safetensors")
        save_file({"a": torch.ones(2)}, self.file, metadata={"format": "pt"})

    def patch(self, name, **options):
        """One by which no daemon is found at the address of that name."""
        return self.package.patch(address=str(self.folder / name), timeout=0.01, **options)

    def unpatch(self):
        self.package.unpatch()

    @property
    def under(self):
        """The name of the patch in force, None without one."""
        try:
            self._read(self.file)
        except ckptd.Unavailable as error:
            return error.facts["address"].rpartition("/")[2]


def of_transformers(file):
    return transformers.modeling_utils.safe_open(file, framework="pt")


def of_accelerate(file):
    return accelerate.utils.load_state_dict(file)


@pytest.fixture(params=[(ckptd, of_transformers), (ckptd.accelerate, of_accelerate)], ids=["transformers", "accelerate"])
def library(request, tmp_path):
    before = held()
    made = Library(*request.param, tmp_path)
    yield made
    made.unpatch()
    assert held() == before


def test_the_end_of_a_block_restores_the_patch_around_it_with_its_options(library):
    library.patch("first")
    with library.patch("second"):
        assert library.under == "second"
        with library.patch("third"):
            assert library.under == "third"
        assert library.under == "second"
    assert library.under == "first"


def test_the_end_of_a_block_restores_nothing_where_nothing_was(library):
    with pytest.raises(KeyError), library.patch("first"):
        raise KeyError
    assert library.under is None


def test_a_patch_takes_the_place_of_the_one_before(library):
    library.patch("first")
    library.patch("second")
    assert library.under == "second"
    library.unpatch()
    assert library.under is None


def test_the_end_of_a_block_ends_what_was_patched_in_it(library):
    with library.patch("first"):
        library.patch("second")
        assert library.under == "second"
    assert library.under is None


def test_unpatch_takes_all_back_and_no_end_of_a_block_restores_any(library):
    library.patch("first")
    with library.patch("second"):
        library.unpatch()
        assert library.under is None
    assert library.under is None
    with library.patch("first"), library.patch("second"):
        library.unpatch()
        library.patch("third")
    assert library.under == "third"


def test_a_patch_is_undone_once(library):
    library.patch("first")
    second = library.patch("second")
    assert second.active
    second.undo()
    assert not second.active
    library.patch("third")
    second.undo()
    assert library.under == "third"


def test_a_patch_that_is_undone_takes_later_ones_along(library):
    first = library.patch("first")
    second = library.patch("second")
    first.undo()
    second.undo()
    assert library.under is None


def test_a_switched_off_patch_leaves_the_one_in_force(library, monkeypatch):
    library.patch("first")
    monkeypatch.setenv("CKPTD_PATCH", "0")
    with library.patch("second") as second:
        assert library.under == "first" and not second.active
    assert library.under == "first"


def test_what_another_patch_took_the_place_of_is_kept_by_nobody():
    class Given(dict):
        pass

    given = Given()
    kept = weakref.ref(given)
    ckptd.accelerate.patch(source=given)
    ckptd.accelerate.patch()
    del given
    gc.collect()
    assert kept() is None
    ckptd.accelerate.unpatch()


def test_a_patch_that_fails_leaves_the_one_in_force(library, monkeypatch):
    library.patch("first")
    with pytest.raises(ckptd.InvalidArgument, match="fallback"):
        library.patch("second", fallback="other")
    assert library.under == "first"


def test_where_a_name_is_missing_nothing_is_changed(monkeypatch):
    monkeypatch.delattr(accelerate.accelerator, "fsdp2_prepare_model")
    monkeypatch.delattr(transformers.core_model_loading, "spawn_materialize", raising=False)
    before = held()
    for library in (ckptd, ckptd.accelerate) if transformers.__version__ > "5" else (ckptd.accelerate,):
        with pytest.raises((AttributeError, ckptd.FailedPrecondition)):
            library.patch()
    assert held() == before


def test_a_trainer_that_was_imported_before_loads_by_the_patch_too(tmp_path, monkeypatch):
    trainer = types.ModuleType("transformers.trainer")
    trainer.load_fsdp_model = accelerate.utils.load_fsdp_model
    trainer.load_fsdp_optimizer = accelerate.utils.load_fsdp_optimizer
    before = dict(vars(trainer))
    monkeypatch.setitem(sys.modules, "transformers.trainer", trainer)
    for _ in range(2):
        with ckptd.accelerate.patch(address=str(tmp_path / "a")), ckptd.accelerate.patch(address=str(tmp_path / "b")):
            assert trainer.load_fsdp_model is accelerate.accelerator.load_fsdp_model
            assert trainer.load_fsdp_optimizer is accelerate.accelerator.load_fsdp_optimizer
            assert trainer.load_fsdp_model is not before["load_fsdp_model"]
        assert vars(trainer) == before


LATER = """
from accelerate.utils import load_fsdp_model
class Trainer:
    is_fsdp_enabled = False
    def _load_from_checkpoint(self, checkpoint, model=None):
        return "its own"
    def _load_optimizer_and_scheduler(self, checkpoint):
        return "its own"
"""


def test_a_trainer_that_is_imported_later_loads_by_the_patch_too(tmp_path, monkeypatch):
    (tmp_path / "trainer.py").write_text(LATER)
    monkeypatch.setattr(transformers, "__path__", [str(tmp_path), *transformers.__path__])
    monkeypatch.setitem(sys.modules, "transformers.trainer", None)
    del sys.modules["transformers.trainer"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    model = torch.nn.Linear(1, 1)
    with ckptd.accelerate.patch(address=str(tmp_path / "none"), timeout=0.01):
        from transformers import trainer

        assert trainer.load_fsdp_model is accelerate.accelerator.load_fsdp_model
        with pytest.raises(ckptd.Unavailable):
            trainer.Trainer()._load_from_checkpoint(str(tmp_path), model)
        fsdp = trainer.Trainer()
        fsdp.is_fsdp_enabled = True
        assert fsdp._load_from_checkpoint(str(tmp_path), model) == "its own"
        assert trainer.Trainer()._load_optimizer_and_scheduler(str(tmp_path)) == "its own"  # nothing of it is there
    assert trainer.Trainer()._load_from_checkpoint(str(tmp_path), model) == "its own"
    assert trainer.load_fsdp_model is accelerate.utils.load_fsdp_model


def test_what_others_have_put_over_a_patch_of_transformers_stays(tmp_path, monkeypatch):
    library = Library(ckptd, of_transformers, tmp_path)
    library.patch("first")
    first = transformers.modeling_utils.safe_open
    with monkeypatch.context() as others:
        others.setattr(transformers.modeling_utils, "safe_open", lambda *given, **named: first(*given, **named))
        theirs = transformers.modeling_utils.safe_open
        with library.patch("second"):
            assert library.under == "second"
        assert transformers.modeling_utils.safe_open is theirs and library.under == "first"
    library.unpatch()
    assert library.under is None


@pytest.mark.parametrize("name", ["fsdp2_prepare_model", "load_state_dict"])
def test_an_accelerate_that_lacks_a_function_is_refused_with_one_that_has_it(monkeypatch, name):
    monkeypatch.delattr(accelerate.utils, name)
    before = held()
    with pytest.raises(ckptd.FailedPrecondition, match=f"{name} in accelerate.utils: accelerate .* none there; use accelerate 1.15") as raised:
        ckptd.accelerate.patch()
    assert raised.value.reason == "ACCELERATE_UNSUPPORTED"
    assert raised.value.facts["version"] == accelerate.__version__
    assert held() == before


def test_an_accelerate_that_lacks_a_module_is_refused_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate.utils.fsdp_utils", None)
    with pytest.raises(ckptd.FailedPrecondition, match="in accelerate.utils.fsdp_utils: accelerate"):
        ckptd.accelerate.patch()
