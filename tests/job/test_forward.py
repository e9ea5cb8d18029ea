from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.settings import Settings
from mpiboot.job import forward
from mpiboot.job.mpis import Mpich, OpenMpi5


def select(
    environ: dict[str, str], more: Iterable[str] = (), never: Iterable[str] = ()
) -> forward.Forwarded:
    return forward.select(environ, Settings(forward=tuple(more), no_forward=tuple(never)))


# What libraries read in every rank.
READ = (
    "NCCL_DEBUG UCX_TLS FI_PROVIDER PRTE_MCA_rmaps_base_verbose GLOO_SOCKET_FAMILY TF_X XLA_FLAGS "
    "HIP_LAUNCH_BLOCKING CUDA_LAUNCH_BLOCKING OFI_NCCL_PROTOCOL NVSHMEM_X RDMAV_FORK_SAFE RCCL_X "
    "HSA_FORCE_FINE_GRAIN_PCIE OMP_NUM_THREADS KMP_AFFINITY MKL_NUM_THREADS CUDA_X TORCH_NCCL_X "
    "TP_SOCKET_IFNAME HOROVOD_CYCLE_TIME JAX_PLATFORMS LD_LIBRARY_PATH PATH PYTHONPATH MASTER_PORT"
)
# What is one pod's, and goes only by its full name.
OF_ONE_POD = (
    "CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL HOME TERM POD_NAME NODE_NAME KUBERNETES_PORT USER "
    "X_SERVICE_HOST HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES LOGNAME SHELL SHLVL OLDPWD HOSTNAME "
    "X_PORT_1_TCP JOB_COMPLETION_INDEX VC_TASK_INDEX VK_TASK_INDEX X_SERVICE_PORT TMPDIR "
    "X_SERVICE_PORT_SSH X_PORT_1_UDP_ADDR"
)
# What would break ranks elsewhere.
BREAKING = (
    "PMI_RANK PMIX_SERVER_URI41 PMIX_NAMESPACE _ HYDRA_X OMPI_COMM_WORLD_SIZE SSH_AUTH_SOCK "
    "PCIDEVICE_NVIDIA_COM_VF NVIDIA_DRIVER_CAPABILITIES MPIBOOT_NP NVIDIA_VISIBLE_DEVICES "
    "PMIX_RANK K_MPI_JOB_ROLE a.dot"
)
UNKNOWN = ("FOO", "HF_HOME", "LANG", "NCCLX", "MY_NCCL_DEBUG", "AWS_REGION")


@pytest.mark.parametrize(
    ("name", "by_rule", "by_pattern", "by_name", "shown"),
    [
        *((name, True, True, True, False) for name in READ.split()),
        *((name, False, False, True, False) for name in OF_ONE_POD.split()),
        *((name, False, False, False, False) for name in BREAKING.split()),
        *((name, False, True, True, True) for name in UNKNOWN),
    ],
)
def test_which_variables_go_by_which_rule(
    name: str, *, by_rule: bool, by_pattern: bool, by_name: bool, shown: bool
) -> None:
    environ = {name: "1"}
    found = [bool(select(environ, more).names) for more in ((), ["*"], [name])]
    assert found == [by_rule, by_pattern, by_name]
    assert select(environ).unknown == ((name,) if shown else ())


@pytest.mark.parametrize(
    ("environ", "more", "names"),
    [
        ({"REDIS_PORT": "tcp://10.96.0.9:6379", "NCCL_PORT": "tcp://10.96.0.7:80"}, ["*"], []),
        ({"NCCL_SERVICE_HOST": "10.96.0.7", "NCCL_PORT_80_TCP_ADDR": "10.96.0.7"}, ["*"], []),
        ({"MY_PORT": "8080"}, ["MY_*"], ["MY_PORT"]),
        # What no shell could export.
        ({"BASH_FUNC_x%%": "() { :; }", "NCCL_A B": "1"}, ["BASH_FUNC_*", "NCCL_A B"], []),
    ],
)
def test_services_are_known_by_their_values(
    environ: dict[str, str], more: list[str], names: list[str]
) -> None:
    assert list(select(environ, more).names) == names


def test_what_the_user_names_and_holds_back() -> None:
    chosen = select({"NCCL_DEBUG": ""}, ["MISSING", "GONE_*"])
    assert (chosen.names, chosen.withheld) == (("NCCL_DEBUG",), ("MISSING",))
    environ = {"HOSTNAME": "x", "TMPDIR": "/t", "NVIDIA_VISIBLE_DEVICES": "", "K_MPI_JOB_ROLE": "l"}
    withheld = select(environ, list(environ)).withheld
    assert set(withheld) == {"K_MPI_JOB_ROLE", "NVIDIA_VISIBLE_DEVICES"}
    environ = {"WANDB_MODE": "off", "WANDB_DIR": "/x", "NCCL_DEBUG": "INFO", "PATH": "/bin"}
    chosen = select(environ, ["WANDB_*", "NCCL_DEBUG"], ["NCCL_*", "WANDB_DIR"])
    assert chosen == (("PATH", "WANDB_MODE"), ("NCCL_DEBUG",), ())


def test_what_an_mpi_hands_on_itself_and_what_the_line_exports_is_not_named_again() -> None:
    environ = {"OMPI_MCA_btl": "self", "PMIX_MCA_x": "1", "NCCL_DEBUG": "INFO", "UCX_TLS": "tcp"}
    for exported, auto_exported, named in (
        ("UCX_TLS", OpenMpi5.auto_exported, ("NCCL_DEBUG",)),
        ("NCCL_DEBUG", OpenMpi5.auto_exported, ("UCX_TLS",)),
        ("", Mpich.auto_exported, ()),
    ):
        chosen = forward.select(environ, Settings(), auto_exported, [exported])
        assert (chosen.names, chosen.unknown) == (named, ())


def test_another_managers_variables_go_unless_it_runs_this_platform() -> None:
    managers = (
        "FLUX_JOB_ID",
        "LSB_JOBID",
        "PBS_NODEFILE",
        "PE_HOSTFILE",
        "SLURMD_NODENAME",
        "SLURM_JOB_ID",
    )
    environ = [*managers, "FLUX_DEV", "LS_ACCESS_TOKEN", "LS_COLORS", "PATH", "MY_SLURM_X"]
    assert forward.of_other_managers(environ) == managers
    assert forward.of_other_managers(environ, ("FLUX_", "LSB_")) == managers[2:]


def test_what_mpirun_reads_itself_is_no_variable_of_the_ranks() -> None:
    environ = {"HYDRA_DEBUG": "1", "MPIBOOT_NP": "4", "PATH": "/bin", "PMI_RANK": "0"}
    assert forward.withheld_from_ranks(environ, Settings()) == ("PMI_RANK",)


_variable = st.sampled_from(
    ["NCCL_X", "PATH", "HOSTNAME", "HOME", "KUBERNETES_PORT", "NVIDIA_VISIBLE_DEVICES", "FOO"]
) | st.text(min_size=1, max_size=12)


@given(
    st.dictionaries(_variable, st.text(max_size=20), max_size=12),
    st.lists(_variable | st.just("*"), max_size=3),
    st.lists(_variable, max_size=3),
)
def test_nothing_is_forwarded_twice_unset_forbidden_or_breaking(
    environ: dict[str, str], more: list[str], never: list[str]
) -> None:
    listed = list(select(environ, more, never).names)
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(environ) - set(never)
    assert "NVIDIA_VISIBLE_DEVICES" not in listed
    assert all(name.isidentifier() for name in listed)


def test_a_path_that_has_all_of_another_one() -> None:
    for path, other in (("/a:/b", "/a:/b"), ("/x:/a:/y:/b:/z", "/a:/b"), ("/a", ""), ("/a", "/a:")):
        assert forward.extends(path, other)
    for path, other in (("/b:/a", "/a:/b"), ("/a", "/a:/b"), ("/a/b", "/a")):
        assert not forward.extends(path, other)
