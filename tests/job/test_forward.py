from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.job import forward
from mpiboot.job.hydra import MPICH
from mpiboot.job.openmpi import OPENMPI5


def names(environ: dict[str, str], *more: str, never: tuple[str, ...] = ()) -> list[str]:
    return list(forward.select(environ, more, never).names)


@pytest.mark.parametrize(
    "name",
    [
        *["NCCL_DEBUG", "NCCL_IB_HCA", "UCX_TLS", "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA"],
        *["PRTE_MCA_rmaps_base_verbose", "GLOO_SOCKET_FAMILY", "HIP_LAUNCH_BLOCKING"],
        *["CUDA_LAUNCH_BLOCKING", "OFI_NCCL_PROTOCOL", "NVSHMEM_SYMMETRIC_SIZE", "RDMAV_FORK_SAFE"],
        *["RCCL_MSCCL_ENABLE", "HSA_FORCE_FINE_GRAIN_PCIE", "OMP_NUM_THREADS", "KMP_AFFINITY"],
        *["MKL_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"],
        *["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HOROVOD_CYCLE_TIME", "TF_CPP_MIN_LOG_LEVEL"],
        *["XLA_FLAGS", "JAX_PLATFORMS", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "MASTER_PORT"],
    ],
)
def test_what_libraries_read_in_every_rank_is_forwarded(name: str) -> None:
    assert names({name: "29500"}) == [name]


@pytest.mark.parametrize("name", ["FOO", "HF_HOME", "LANG", "NCCLX", "MY_NCCL_DEBUG", "AWS_REGION"])
def test_what_nobody_asked_for_stays_here_and_is_known_to(name: str) -> None:
    chosen = forward.select({name: "x"})
    assert chosen == forward.Forwarded((), (), (name,))


@pytest.mark.parametrize(
    "name",
    ["HOME", "MPIBOOT_X", "KUBERNETES_PORT", "A_SERVICE_HOST", "B_SERVICE_PORT_HTTP", "a.dot"],
)
def test_what_is_one_pods_or_a_services_is_no_variable_of_the_users(name: str) -> None:
    assert forward.select({name: "x"}).unknown == ()


def test_only_what_exists_is_forwarded_and_a_missing_name_is_said() -> None:
    chosen = forward.select({"NCCL_DEBUG": ""}, ["MISSING", "GONE_*"])
    assert chosen.names == ("NCCL_DEBUG",)
    assert chosen.withheld == ("MISSING",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOSTNAME", "pi-launcher"),
        ("HOME", "/root"),
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("KUBERNETES_PORT", "tcp://10.96.0.1:443"),
        ("REDIS_PORT", "tcp://10.96.0.9:6379"),
        ("REDIS_SERVICE_PORT_HTTP", "80"),
        ("NCCL_SERVICE_HOST", "10.96.0.7"),
        ("NCCL_PORT", "tcp://10.96.0.7:80"),
        ("NCCL_PORT_80_TCP_ADDR", "10.96.0.7"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("NVIDIA_VISIBLE_DEVICES", ""),
        ("K_MPI_JOB_ROLE", "launcher"),
        ("MPIBOOT_ROLE", "launcher"),
        ("SSH_AUTH_SOCK", "/tmp/x"),
        ("PMIX_RANK", "0"),
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("_", "/usr/bin/env"),
    ],
)
def test_what_is_true_of_one_pod_only_stays_even_when_a_pattern_has_it(
    name: str, value: str
) -> None:
    assert forward.select({name: value}, ["*"]) == ((), (), ())


def test_a_port_that_is_no_service_address_is_forwarded_when_asked() -> None:
    assert names({"MY_PORT": "8080"}, "MY_*") == ["MY_PORT"]
    assert names({"MY_PORT": "tcp://10.0.0.1:8080"}, "MY_*") == []


def test_a_full_name_wins_over_one_pods_truth_unless_ranks_would_break() -> None:
    environ = {"HOSTNAME": "x", "TMPDIR": "/t", "NVIDIA_VISIBLE_DEVICES": "", "K_MPI_JOB_ROLE": "l"}
    chosen = forward.select(environ, list(environ))
    assert chosen.names == ("HOSTNAME", "TMPDIR")
    assert set(chosen.withheld) == {"K_MPI_JOB_ROLE", "NVIDIA_VISIBLE_DEVICES"}


@pytest.mark.parametrize(
    ("name", "wins"),
    [
        *((name, True) for name in ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HOME", "TERM")),
        *((name, True) for name in ("POD_NAME", "NODE_NAME", "KUBERNETES_PORT", "X_SERVICE_HOST")),
        *((name, False) for name in ("PMI_RANK", "PMIX_SERVER_URI41", "PMIX_NAMESPACE", "_")),
        *((name, False) for name in ("HYDRA_X", "OMPI_COMM_WORLD_SIZE", "SSH_AUTH_SOCK")),
        *((name, False) for name in ("PCIDEVICE_NVIDIA_COM_VF", "NVIDIA_DRIVER_CAPABILITIES")),
        *((name, False) for name in ("MPIBOOT_NP", "NVIDIA_VISIBLE_DEVICES", "PMIX_RANK")),
        *((name, True) for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "USER")),
        *((name, True) for name in ("LOGNAME", "SHELL", "SHLVL", "OLDPWD", "X_PORT_1_TCP")),
        *((name, True) for name in ("JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "VK_TASK_INDEX")),
        *((name, True) for name in ("X_SERVICE_PORT", "X_SERVICE_PORT_SSH", "X_PORT_1_UDP_ADDR")),
    ],
)
def test_what_would_break_ranks_elsewhere_is_not_forwarded_by_its_full_name_either(
    name: str, *, wins: bool
) -> None:
    assert names({name: "1"}, name) == ([name] if wins else [])


def test_more_adds_patterns_and_never_wins_over_everything() -> None:
    environ = {"WANDB_MODE": "off", "WANDB_DIR": "/x", "NCCL_DEBUG": "INFO", "PATH": "/bin"}
    chosen = forward.select(environ, ["WANDB_*", "NCCL_DEBUG"], ["NCCL_*", "WANDB_DIR"])
    assert chosen.names == ("PATH", "WANDB_MODE")
    assert chosen.withheld == ("NCCL_DEBUG",)
    assert chosen.unknown == ()


def test_what_an_mpi_hands_on_itself_and_what_the_line_exports_is_not_named_again() -> None:
    environ = {"OMPI_MCA_btl": "self", "PMIX_MCA_x": "1", "NCCL_DEBUG": "INFO", "UCX_TLS": "tcp"}
    for exported, auto_exported, named in (
        ("UCX_TLS", OPENMPI5.auto_exported, ("NCCL_DEBUG",)),
        ("NCCL_DEBUG", OPENMPI5.auto_exported, ("UCX_TLS",)),
        ("", MPICH.auto_exported, ()),
    ):
        chosen = forward.select(environ, auto_exported=auto_exported, given=[exported])
        assert (chosen.names, chosen.unknown) == (named, ())


def test_a_name_that_no_shell_could_export_stays() -> None:
    environ = {"BASH_FUNC_x%%": "() { :; }", "NCCL_A B": "1"}
    chosen = forward.select(environ, ["BASH_FUNC_*", "NCCL_A B"])
    assert chosen.names == ()


def test_another_managers_variables_go_unless_it_runs_this_platform() -> None:
    environ = {
        "SLURM_JOB_ID": "1",
        "SLURMD_NODENAME": "n",
        "PBS_NODEFILE": "/x",
        "LSB_JOBID": "2",
        "PE_HOSTFILE": "/y",
        "LS_COLORS": "x",
        "PATH": "/bin",
        "MY_SLURM_X": "1",
    }
    found = forward.of_other_managers(environ)
    assert environ.keys() - set(found) == {"LS_COLORS", "PATH", "MY_SLURM_X"}
    assert found == tuple(sorted(found))
    others = forward.of_other_managers(environ, ("LSB_", "LSF_"))
    assert set(found) - set(others) == {"LSB_JOBID"}


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
    chosen = forward.select(environ, more, never)
    listed = list(chosen.names)
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(environ)
    assert not set(listed) & set(never)
    assert "NVIDIA_VISIBLE_DEVICES" not in listed
    assert all(name.isidentifier() for name in listed)
