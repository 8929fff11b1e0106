"""A step that does not fit is refused with what would; a step that fits the L2 cache is warned about."""

import pytest

from simulator.capacity import cache_warm_warning, check_fits, free_host_bytes
from simulator.config import CommConfig, KernelsConfig, SimulatorConfig
from simulator.deployment import Deployment
from simulator.errors import BadInputError
from simulator.profiles import load_profile
from simulator.step.build import build_step
from tests.configs import model, recipe

GIB = 2**30


def config(**deployment):
    return SimulatorConfig(
        model=model("glm5"),
        recipe=recipe("nvidia_glm5"),
        deployment=Deployment(**deployment),
        hardware=load_profile("h200_x8"),
        kernels=KernelsConfig(name="serving", programmatic_launch=True),
        comm=CommConfig(),
    )


def step_of(chosen):
    return build_step(chosen.model, chosen.recipe, chosen.deployment)


def test_what_fits_passes():
    check_fits(config(), step_of(config()), 60 * GIB)


def test_too_many_weights_are_answered_with_a_number_of_layers_that_fits():
    with pytest.raises(
        BadInputError, match=r"needs 58.1 GiB \(54.8 weights.*use deployment.weight_layers=\d+"
    ) as error:
        check_fits(config(), step_of(config()), 40 * GIB)
    layers = int(str(error.value).split("weight_layers=")[1].split(",")[0])
    check_fits(config(), step_of(config(weight_layers=layers)), 40 * GIB)
    with pytest.raises(BadInputError):
        check_fits(config(), step_of(config(weight_layers=layers + 1)), 40 * GIB)


def test_too_large_caches_are_answered_with_shared_caches():
    wide = config(batch=1024, context=8192)
    with pytest.raises(BadInputError, match=r"deployment\.cache_layers="):
        check_fits(wide, step_of(wide), 139 * GIB)


def test_what_can_never_fit_says_so():
    wide = config(batch=1024, context=202_752)
    with pytest.raises(BadInputError, match=r"a larger deployment\.tp, a smaller deployment\.batch"):
        check_fits(wide, step_of(wide), 20 * GIB)


def test_the_whole_model_is_not_cache_warm():
    assert cache_warm_warning(step_of(config()), Deployment(), load_profile("rtx_pro_6000_x8")) is None


def test_one_layer_in_a_loop_is_warned_about_with_a_number_that_is_enough():
    few = config(weight_layers=1)
    warning = cache_warm_warning(step_of(few), few.deployment, load_profile("rtx_pro_6000_x8"))
    enough = int(warning.split("at least ")[1].split(" ")[0])
    more = config(weight_layers=enough)
    assert cache_warm_warning(step_of(more), more.deployment, load_profile("rtx_pro_6000_x8")) is None


def test_this_machine_has_memory():
    assert free_host_bytes() > 2**20
