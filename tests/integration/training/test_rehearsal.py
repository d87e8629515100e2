"""What a program for GPUs meets under rehearsal. Each is a program of its own, in a process of its own."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.integration.training.rehearsed import run_source

pytestmark = pytest.mark.integration

HEAD = """
import threading, torch
from torch import nn
"""


def rehearse(source: str, directory: Path, devices: int = 3, ranks: int = 1) -> str:
    """Run a program, which must succeed on all ranks; what the first one prints."""
    ran = run_source(HEAD + textwrap.dedent(source), devices, ranks=ranks, directory=directory)
    assert [each.code for each in ran] == [0] * ranks, "\n".join(each.text for each in ran)
    return ran[0].text


# -- devices ---------------------------------------------------------------------------------------


def test_the_devices_of_the_job_are_there(tmp_path: Path) -> None:
    rehearse(
        """
        assert torch.cuda.is_available() and torch.cuda.device_count() == 3
        assert torch.accelerator.is_available() and torch.accelerator.device_count() == 3
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.cuda.current_device() == 0
        with torch.cuda.device(2):
            assert torch.cuda.current_device() == 2
        assert torch.cuda.current_device() == 0
        torch.cuda.set_device("cuda:1")
        assert torch.accelerator.current_device_index() == 1
        torch.cuda.set_device(-1)
        assert torch.cuda.current_device() == 1
        assert torch.cuda.get_device_name(2) == "virtual device (rehearsal)"
        assert torch.cuda.get_device_capability() == (8, 0) and torch.cuda.is_bf16_supported()
        assert torch.cuda.get_device_properties("cuda:1").total_memory > 0
        """,
        tmp_path,
    )


def test_every_thread_has_a_current_device_of_its_own(tmp_path: Path) -> None:
    rehearse(
        """
        seen = []
        def work():
            seen.append(torch.cuda.current_device())
            torch.cuda.set_device(2)
            seen.append((torch.zeros(1, device="cuda").get_device(), torch.ones(1).cuda().get_device()))
        torch.cuda.set_device(1)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [0, (2, 2)], seen
        assert torch.cuda.current_device() == 1
        """,
        tmp_path,
    )


def test_a_device_that_the_job_does_not_have_is_an_error_that_counts_them(tmp_path: Path) -> None:
    text = rehearse(
        """
        def fails(call):
            try:
                call()
            except RuntimeError as error:
                print(error)
                return True
        assert fails(lambda: torch.ones(1).to("cuda:3"))
        assert fails(lambda: torch.cuda.set_device(3))
        assert fails(lambda: nn.Linear(1, 1).cuda(7))
        assert fails(lambda: torch.zeros(1, device=torch.device("cuda", 5)))
        try:
            nn.DataParallel(nn.Linear(1, 1), device_ids=[0, 3])
        except AssertionError as error:
            print(error)
        """,
        tmp_path,
    )
    assert "invalid device ordinal: cuda:3 was asked for in a job with 3 devices; this process sees 3" in text
    assert "Invalid device id" in text


def test_a_program_may_hide_devices_from_itself(tmp_path: Path) -> None:
    rehearse(
        """
        import os
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,7,2"
        assert torch.cuda.device_count() == 2  # what follows an unknown one does not count
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        assert torch.cuda.device_count() == 2  # it is read once
        """,
        tmp_path,
    )
    rehearse(
        """
        import os
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
        model = nn.DataParallel(nn.Linear(2, 2))
        assert model.device_ids == [] and model(torch.ones(4, 2)).shape == (4, 2)
        """,
        tmp_path,
    )


# -- tensors and modules ---------------------------------------------------------------------------


def test_whatever_names_a_device_lands_on_the_cpu(tmp_path: Path) -> None:
    rehearse(
        """
        rows = torch.ones(2, 3)
        cuda = torch.device("cuda", 1)
        generator = torch.Generator(device="cuda").manual_seed(1)
        landed = [
            rows.cuda(), rows.cuda(1, non_blocking=True), rows.cuda(device="cuda:2"), rows.to("cuda"), rows.to(0),
            rows.to(cuda, torch.float64, non_blocking=True), rows.to(device="cuda:0"), rows.to(rows.cuda()),
            rows.type("torch.cuda.FloatTensor"), rows.type(torch.cuda.LongTensor), torch.cuda.FloatTensor(2),
            torch.randn(2, device="cuda", generator=generator), torch.tensor([1.0], device=cuda),
            torch.zeros_like(rows, device="cuda"), rows.new_zeros(2, device="cuda"), torch.arange(3, device=0),
            torch.as_tensor([1], device="cuda"), torch.empty(2, pin_memory=True), rows.pin_memory(),
            torch.fft.fftfreq(4, device="cuda"), torch.randperm(4, device="cuda"), torch.full((2,), 1, device="cuda"),
            nn.Linear(2, 2, device="cuda").weight, nn.Linear(2, 2).to("cuda:1", torch.float16).weight,
            nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight, nn.LSTM(2, 2).cuda().weight_ih_l0,
        ]
        assert {tensor.device.type for tensor in landed} == {"cpu"}
        assert isinstance(generator, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
        assert torch.zeros(1, device="meta").device.type == "meta"
        assert torch.zeros(1, device=(rows * 2).get_device()).device.type == "cpu"
        """,
        tmp_path,
    )


def test_a_default_device_lands_on_the_cpu_too(tmp_path: Path) -> None:
    rehearse(
        """
        torch.set_default_device("cuda")
        assert torch.ones(1).device.type == "cpu"
        torch.set_default_device("meta")
        assert torch.ones(1).device.type == "meta"
        torch.set_default_device(None)
        with torch.device("cuda:1"):
            assert nn.Linear(2, 2).weight.device.type == "cpu"
        """,
        tmp_path,
    )


def test_what_was_put_on_a_device_says_so_and_its_device_is_the_truth(tmp_path: Path) -> None:
    rehearse(
        """
        rows, model = torch.ones(2, 3), nn.BatchNorm1d(3)
        assert not rows.is_cuda and rows.get_device() == -1
        assert not next(model.parameters()).is_cuda
        model.to("cuda:2")
        assert next(model.parameters()).is_cuda and model.running_mean.is_cuda
        assert next(model.parameters()).get_device() == 2
        assert rows.cuda(1).is_cuda and rows.cuda(1).get_device() == 1
        assert rows.cuda(1).device == torch.device("cpu")
        assert not rows.cuda(1).cpu().is_cuda
        """,
        tmp_path,
    )


def test_what_is_computed_on_a_device_is_taken_to_be_there(tmp_path: Path) -> None:
    rehearse(
        """
        import copy
        assert not (torch.ones(2) * 2).is_cuda  # nothing is on a device yet
        model = nn.Linear(3, 2, device="cuda")
        loaded = torch.ones(4, 3)
        output = model(loaded.cuda())
        assert model.weight.is_cuda and copy.deepcopy(model).weight.is_cuda
        assert output.is_cuda and output.detach().is_cuda and output.detach().get_device() == 0
        assert not loaded.is_cuda and not torch.ones(2).is_cuda and not nn.Linear(2, 2).weight.is_cuda
        assert not output.cpu().is_cuda and not model.cpu().weight.is_cuda
        seen = []
        class Discriminator(nn.Module):
            def forward(self, pictures):
                seen.append((len(pictures), (pictures + 1).get_device()))
                return pictures
        generated = model(loaded.cuda()).detach()
        if generated.is_cuda:
            nn.parallel.data_parallel(Discriminator(), generated, range(2))
        assert seen == [(2, 0), (2, 1)], seen
        """,
        tmp_path,
    )


def test_a_move_copies_as_between_devices(tmp_path: Path) -> None:
    rehearse(
        """
        rows = torch.ones(3)
        there = rows.cuda()
        there.add_(1)
        assert rows.tolist() == [1, 1, 1]
        assert there.cuda() is there and there.to("cuda:0") is there
        model = nn.Linear(2, 2).cuda()
        best = {name: value.cpu() for name, value in model.state_dict().items()}
        also = {name: value.to("cpu") for name, value in model.state_dict().items()}
        before = model.weight.detach().clone()
        with torch.no_grad():
            model.weight.add_(1)
        assert torch.equal(best["weight"], before) and torch.equal(also["weight"], before)
        here = model.cpu().state_dict()
        before = here["weight"].clone()
        with torch.no_grad():
            model.cuda().weight.add_(1)
        assert torch.equal(here["weight"], before) and not torch.equal(model.weight, before)
        leaf = torch.ones(2, requires_grad=True)
        leaf.cuda().sum().backward()
        assert leaf.grad.tolist() == [1, 1]
        assert torch.ones(2, device="cuda", requires_grad=True).is_leaf
        """,
        tmp_path,
    )


def test_files_are_read_back_onto_any_device(tmp_path: Path) -> None:
    rehearse(
        """
        import io
        model = nn.DataParallel(nn.Linear(2, 2)).cuda()
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        moving = lambda storage, place: storage.cuda(1)
        for location in (None, "cuda:1", torch.device("cuda"), {"cuda:0": "cuda:2"}, moving):
            file.seek(0)
            state = torch.load(file, map_location=location)
            assert torch.equal(state["module.weight"], model.module.weight)
        """,
        tmp_path,
    )


def test_pinned_memory_and_workers_of_a_data_loader_are_harmless(tmp_path: Path) -> None:
    rehearse(
        """
        from torch.utils.data import DataLoader
        loader = DataLoader(torch.arange(10.0), batch_size=4, num_workers=1, pin_memory=True)
        assert [batch.cuda(non_blocking=True).tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        """,
        tmp_path,
    )


def test_seeding_the_devices_changes_nothing_on_the_cpu(tmp_path: Path) -> None:
    rehearse(
        """
        torch.manual_seed(3)
        expected = torch.rand(4)
        torch.manual_seed(3)
        torch.cuda.manual_seed(7)
        torch.cuda.manual_seed_all(8)
        states = torch.cuda.get_rng_state_all()
        assert torch.cuda.initial_seed() == 8 and len(states) == 3
        torch.cuda.manual_seed_all(9)
        torch.cuda.set_rng_state_all(states)
        assert torch.cuda.initial_seed() == 8
        assert torch.equal(torch.rand(4), expected)
        with torch.random.fork_rng(devices=[0, 1]):
            torch.cuda.manual_seed_all(1)
        assert torch.cuda.initial_seed() == 8
        """,
        tmp_path,
    )


def test_questions_about_memory_and_time_have_harmless_answers(tmp_path: Path) -> None:
    rehearse(
        """
        import time
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()
        torch.cuda.synchronize(1)
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved(2) == 0
        assert torch.cuda.memory_stats()["num_alloc_retries"] == 0
        free, total = torch.cuda.mem_get_info()
        assert 0 < free <= total
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        time.sleep(0.01)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 10
        torch.cuda.current_stream().synchronize()
        torch.cuda.nvtx.range_push("step")
        torch.cuda.nvtx.range_pop()
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
            model = nn.Linear(2, 2).cuda()
            model(torch.ones(1, 2).cuda()).sum().backward()
            kind(model.parameters(), lr=0.1).step()
        """,
        tmp_path,
    )


# -- DataParallel ----------------------------------------------------------------------------------


def test_replicas_run_in_threads_of_their_devices_and_know_where_they_are(tmp_path: Path) -> None:
    rehearse(
        """
        seen = []
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(5, 2)
            def forward(self, rows, scale):
                where = [torch.cuda.current_device(), rows.get_device(), scale.get_device()]
                seen.append((where, len(rows), rows.is_cuda))
                here = torch.zeros(2, device=rows.get_device())
                return {"scaled": self.fc(rows) * scale[:, None] + here}
        model = nn.DataParallel(Model(), device_ids=[2, 0, 1], output_device=1).to("cuda:2")
        output = model(torch.randn(10, 5), scale=torch.ones(10))
        assert seen == [([2] * 3, 4, True), ([0] * 3, 4, True), ([1] * 3, 2, True)], seen
        assert output["scaled"].shape == (10, 2) and output["scaled"].get_device() == 1
        """,
        tmp_path,
    )


def test_subclasses_and_the_functional_form_split_alike(tmp_path: Path) -> None:
    rehearse(
        """
        from torch.nn.parallel import DataParallel, data_parallel
        seen = []
        class Model(nn.Linear):
            def forward(self, rows):
                seen.append(len(rows))
                return super().forward(rows)
        class Mine(DataParallel):
            def gather(self, outputs, output_device):
                return [len(output) for output in outputs]
        assert Mine(Model(5, 2)).cuda()(torch.ones(10, 5)) == [4, 4, 2]
        seen.clear()
        model = Model(5, 2).cuda()
        whole = model(torch.arange(50.0).view(10, 5))
        parts = data_parallel(model, torch.arange(50.0).view(10, 5).cuda(), range(3))
        assert torch.allclose(whole, parts) and seen == [10, 4, 4, 2]
        """,
        tmp_path,
    )


def test_communication_between_devices_has_the_meaning_of_torchs(tmp_path: Path) -> None:
    rehearse(
        """
        from torch.cuda import comm
        from torch.nn.parallel._functions import Broadcast, Gather, Scatter
        parts = comm.scatter(torch.arange(7.0), [0, 1, 2])
        assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
        assert [part.get_device() for part in parts] == [0, 1, 2]
        assert [len(part) for part in comm.scatter(torch.arange(7.0), [0, 1], chunk_sizes=[5, 2])] == [5, 2]
        assert comm.gather(parts, destination=1).get_device() == 1
        assert comm.gather(parts).tolist() == list(range(7))
        copies = comm.broadcast(torch.ones(2).cuda(), [0, 1, 2])
        copies[1].add_(1)
        assert [copy.tolist() for copy in copies] == [[1, 1], [2, 2], [1, 1]]
        assert comm.reduce_add(copies).tolist() == [4, 4]
        assert comm.reduce_add_coalesced([[copy, copy] for copy in copies])[1].tolist() == [4, 4]
        assert len(comm.broadcast_coalesced([torch.ones(1).cuda()] * 2, [0, 2])[1]) == 2
        rows = torch.ones(6, requires_grad=True)
        Gather.apply(0, 0, *Scatter.apply([0, 1, 2], None, 0, rows)).sum().backward()
        assert rows.grad.tolist() == [1] * 6
        weight = torch.ones(1, requires_grad=True)
        sum(Broadcast.apply([0, 1, 2], weight)).backward()
        assert weight.grad.tolist() == [3]
        """,
        tmp_path,
    )


def test_data_parallel_within_a_replica_is_refused_as_torch_does(tmp_path: Path) -> None:
    rehearse(
        """
        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.DataParallel(nn.Linear(5, 5))
            def forward(self, rows):
                return self.inner(rows)
        assert Outer().cuda()(torch.ones(9, 5)).shape == (9, 5)
        try:
            nn.DataParallel(Outer()).cuda()(torch.ones(9, 5))
        except RuntimeError as error:
            assert "on device cuda:0 (device_ids[0]) but found one of them on device: cuda:1" in str(error)
        else:
            raise AssertionError
        assert nn.DataParallel(Outer(), [0]).cuda()(torch.ones(9, 5)).shape == (9, 5)
        """,
        tmp_path,
    )


# -- precision -------------------------------------------------------------------------------------


def test_autocast_for_cuda_computes_in_bfloat16_in_every_replica(tmp_path: Path) -> None:
    rehearse(
        """
        seen = []
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(5, 2, batch_first=True)
            def forward(self, rows):
                output, _ = self.rnn(rows)
                seen.append((output.dtype, torch.is_autocast_enabled(), torch.get_autocast_dtype("cuda")))
                return output
        model = nn.DataParallel(Model()).cuda()
        before = torch.get_autocast_dtype("cpu")
        with torch.autocast("cuda"):
            model(torch.ones(3, 4, 5).cuda()).float().sum().backward()
            with torch.autocast("cuda", enabled=False):
                assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            model(torch.ones(1, 4, 5).cuda())
        assert seen == [(torch.bfloat16, True, torch.float16)] * 3 + [(torch.bfloat16, True, torch.bfloat16)], seen
        assert not torch.is_autocast_enabled() and not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == before
        """,
        tmp_path,
    )


def test_recurrent_layers_compute_under_autocast_on_every_processor(tmp_path: Path) -> None:
    rehearse(
        """
        from torch.nn.utils.rnn import pack_padded_sequence
        rows = torch.ones(3, 4, 5).cuda()
        packed = pack_padded_sequence(rows, [4, 3, 1], batch_first=True)
        for kind in (nn.LSTM, nn.GRU):
            layer = kind(5, 2, num_layers=2, bidirectional=True, batch_first=True).cuda()
            plain = layer(rows)[0]
            with torch.autocast("cuda"):
                output, hidden = layer(rows)
                of_packed = layer(packed)[0].data
                assert layer(rows, hidden)[0].dtype == output.dtype == of_packed.dtype == torch.bfloat16
            assert torch.allclose(output.float(), plain, atol=0.02)
            (output.float().sum() + of_packed.float().sum()).backward()
            assert all(weight.grad.dtype == torch.float32 and weight.grad.any() for weight in layer.parameters())
            assert layer(rows)[0].dtype == torch.float32
        """,
        tmp_path,
    )


def test_scaled_gradients_train_as_unscaled_ones(tmp_path: Path) -> None:
    rehearse(
        """
        def trained(scaler):
            torch.manual_seed(0)
            model = nn.Linear(3, 1).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                scaler.scale(model(torch.ones(2, 3).cuda()).square().sum()).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            return model.weight
        plain = trained(torch.amp.GradScaler("cuda", enabled=False))
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        assert scaler.is_enabled() and torch.allclose(trained(scaler), plain)
        """,
        tmp_path,
    )


def test_compiled_code_may_name_devices(tmp_path: Path) -> None:
    rehearse(
        """
        @torch.compile(backend="eager", fullgraph=True)
        def compiled(rows):
            return rows.to("cuda") * 2 + torch.ones(3, device="cuda")
        assert compiled(torch.ones(3)).tolist() == [3, 3, 3]
        """,
        tmp_path,
    )


# -- several processes -----------------------------------------------------------------------------


def test_ranks_average_gradients_over_nccl(tmp_path: Path) -> None:
    rehearse(
        """
        import os, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        rank = int(os.environ["LOCAL_RANK"])
        assert torch.cuda.device_count() == 2 and dist.is_nccl_available()
        torch.cuda.set_device(rank)
        dist.init_process_group("cuda:nccl,cpu:gloo", device_id=torch.device("cuda", rank))
        assert dist.get_backend() == "gloo"
        dist.barrier(device_ids=[rank])
        model = DistributedDataParallel(nn.Linear(2, 1).cuda(), device_ids=[rank], output_device=rank)
        model(torch.full((1, 2), float(rank)).cuda()).backward()
        assert model.module.weight.grad.tolist() == [[0.5, 0.5]]
        mean = torch.full((1,), float(rank), device="cuda")
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=dist.new_group([0, 1], backend="nccl"))
        assert mean.item() == 0.5
        flat, part = torch.empty(4), nn.Parameter(torch.full((1, 2), float(rank)).cuda())
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(input_tensor=part, output_tensor=flat)
        assert flat.tolist() == [0, 0, 1, 1]
        """,
        tmp_path,
        devices=2,
        ranks=2,
    )


def test_batches_are_normalised_together_on_all_ranks(tmp_path: Path) -> None:
    rehearse(
        """
        import os, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        rank = int(os.environ["RANK"])
        dist.init_process_group("nccl")
        torch.manual_seed(0)
        whole, alone = torch.randn(8, 3, 4), nn.Sequential(nn.Conv1d(3, 5, 1), nn.BatchNorm1d(5))
        model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv1d(3, 5, 1), nn.BatchNorm1d(5))).cuda()
        model.load_state_dict(alone.state_dict())
        model = DistributedDataParallel(model, device_ids=[rank])
        part, all_of_it = model(whole[rank * 4 : rank * 4 + 4].cuda()), alone(whole)
        part.pow(3).mean().backward()
        all_of_it.pow(3).mean().backward()
        assert torch.allclose(part, all_of_it[rank * 4 : rank * 4 + 4], atol=1e-5)
        for ours, expected in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(ours.grad, expected.grad, atol=1e-5)
        for ours, expected in zip(model.buffers(), alone.buffers(), strict=True):
            assert torch.allclose(ours, expected, atol=1e-5)
        model.eval()
        alone.eval()
        assert torch.allclose(model(whole), alone(whole), atol=1e-5)
        """,
        tmp_path,
        devices=2,
        ranks=2,
    )


def test_batches_are_normalised_together_under_autocast(tmp_path: Path) -> None:
    rehearse(
        """
        import os, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        rank = int(os.environ["RANK"])
        dist.init_process_group("nccl")
        torch.manual_seed(0)
        whole, alone = 100 + torch.randn(600, 3, 4), nn.Sequential(nn.Conv1d(3, 5, 1), nn.BatchNorm1d(5))
        model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv1d(3, 5, 1), nn.BatchNorm1d(5))).cuda()
        model.load_state_dict(alone.state_dict())
        model = DistributedDataParallel(model, device_ids=[rank])
        with torch.autocast("cuda", dtype=torch.float16):
            part = model(whole[rank * 300 : rank * 300 + 300].cuda())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            all_of_it = alone(whole)
        assert part.dtype is all_of_it.dtype is torch.bfloat16
        part.float().pow(3).mean().backward()
        assert torch.allclose(part, all_of_it[rank * 300 : rank * 300 + 300], atol=0.05)
        for ours, expected in zip(model.buffers(), alone.buffers(), strict=True):
            assert torch.allclose(ours, expected, rtol=1e-3)
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
        """,
        tmp_path,
        devices=2,
        ranks=2,
    )


def test_sharded_models_train_on_the_cpu(tmp_path: Path) -> None:
    rehearse(
        """
        import warnings
        warnings.simplefilter("ignore")  # torch warns that its older sharding is deprecated
        import os, torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, fully_shard
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        rows = torch.ones(4, 6).cuda()
        def net():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
        expected = net()(rows)
        newer = net().cuda()
        fully_shard(newer, mesh=init_device_mesh("cuda", (2,)))
        older = FullyShardedDataParallel(net(), device_id=torch.cuda.current_device())
        for model in (newer, older, FullyShardedDataParallel(net().cuda())):
            assert torch.allclose(model(rows), expected, atol=1e-5)
            model(rows).sum().backward()
            torch.optim.AdamW(model.parameters()).step()
        """,
        tmp_path,
        devices=2,
        ranks=2,
    )


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("torch.cuda.Stream()", "Work on several CUDA streams"),
        ("torch.cuda.CUDAGraph()", "A CUDA graph"),
        ("torch.cuda.graph(None)", "A CUDA graph"),
        ("torch.cuda.utilization()", "Reading a GPU's sensors (NVML)"),
        ("torch.UntypedStorage(4, device='cuda')", "This call, which goes to CUDA itself,"),
        (
            "__import__('torch.utils.cpp_extension').utils.cpp_extension.load('x', ['kernel.cpp', 'kernel.cu'])",
            "A CUDA kernel of the program's own",
        ),
    ],
)
def test_what_needs_a_gpu_fails_and_says_so(call: str, what: str, tmp_path: Path) -> None:
    [ran] = run_source(f"import torch\n{call}\n", 2, directory=tmp_path)
    assert ran.code == 1
    assert f"NotRehearsable: {what} cannot be rehearsed: this job runs on virtual devices" in ran.text


def test_torch_is_not_imported_before_the_program_does_it() -> None:
    program = """
import sys
from workers.rehearsal import install as rehearsal
rehearsal.install(3, 0, 1)
rehearsal.install(3, 0, 1)
assert not any(name.partition(".")[0] == "torch" for name in sys.modules)
import torch
assert torch.cuda.device_count() == 3
assert torch.ones(1).cuda().is_cuda
assert torch.nn.DataParallel(torch.nn.Linear(2, 1)).cuda()(torch.ones(3, 2)).shape == (3, 1)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
