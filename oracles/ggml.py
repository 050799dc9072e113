"""llama.cpp's ggml on its CPU backend: a real engine with MXFP4 experts, bound by PyPI's ggml-python.

The whole layer is one ggml compute graph:

    x rows -> mul_mat_id(w13) [-> add_id(b13)] -> swiglu | swiglu_oai | SiTU of tanh, sigmoid, mul and div
           -> mul_mat_id(w2) [-> add_id(b2)] -> mul(router weights) -> get_rows_back (adds the slots of a token)

What the adapter does around it: blocks of weights in ggml's own order (`oracles.layouts`), local expert ids, and dead
slots. ggml has no -1. A slot that is masked or another rank's is not given to it at all, because a valid id with
weight 0 would let an expert's NaN or infinity through (0 * NaN). When every slot is live, ggml gets the plain
table of K ids a token, as llama.cpp calls it; else every live (token, slot) becomes a row of its own with one id. A
row without a live slot is ggml's sum of nothing, 0; when no slot is live at all, M = 0 included, the zeros are ours.

References are to the sources that ggml-python 0.0.45 vendors, below vendor/ggml/src.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from oracles.ggml_graph import Graph, library, repack_buffer_type
from oracles.layouts import to_block_mxfp4
from oracles.numerics import Accumulator, Numerics, Quantizer, Transcendental
from oracles.problem import Problem
from strategies.capability import Capability
from strategies.scenario import Scenario

INSTALL = "pip install 'difftest[ggml]'"


class Ggml:
    """Oracle "ggml".

    Non-finite x: Q8_0 has no code for a NaN or an infinity. Its block of 32 is undefined in its own row (on x86 most
    NaNs become the finite number -128 d) and no other row sees it. Router weights are multiplied as IEEE says.
    Scale bytes: 0x00 is 2**-127 as in OCP MX. 0xFF is not NaN but 2**128 (ggml_e8m0_to_fp32_half in ggml-impl.h): a
    departure that no Numerics excuses, and so a finding.
    """

    name = "ggml"
    packages = ("ggml-python",)
    reproduction = "reproductions/ggml.py:plain"
    capability = Capability(output_dtypes=frozenset({"bfloat16", "float16"}))

    def __init__(self) -> None:
        self.numerics = _numerics(vectorised=self.missing() is None and _has_avx2())

    def missing(self) -> str | None:
        """What the machine lacks, with the command that brings it."""
        if importlib.util.find_spec("ggml") is None:
            return f"not installed: {INSTALL} (builds from source; needs cmake and a C compiler)"
        try:
            library()
        except (ImportError, OSError, RuntimeError) as error:  # what its loader raises for a shared library
            return f"cannot be loaded: {error}; build it again with {INSTALL} --force-reinstall --no-cache-dir"
        return None

    def unsupported(self, scenario: Scenario) -> str | None:
        """What is outside `capability`, in a few words; None otherwise."""
        return self.capability.objection(scenario)

    def prepare(self, problem: Problem) -> _Layer:
        return _Layer(problem, repacked=False)

    def __call__(self, prepared: _Layer) -> torch.Tensor:
        return prepared.run()


class GgmlRepacked(Ggml):
    """Oracle "ggml-repacked": the same layer with weights in ggml's repacked buffer, where llama.cpp keeps them by
    default on a CPU with AVX2, or NEON and dotprod. Its mul_mat_id is a kernel of its own (ggml-cpu/repack.cpp).

    ggml repacks stacks of experts only: a rank's only expert goes through the plain kernel.
    """

    name = "ggml-repacked"
    reproduction = "reproductions/ggml.py:repacked"

    def missing(self) -> str | None:
        lacking = super().missing()
        if lacking is None and repack_buffer_type() is None:
            return "not in this build of ggml: repacked MXFP4 weights need AVX2, or NEON with dotprod"
        return lacking

    def prepare(self, problem: Problem) -> _Layer:
        return _Layer(problem, repacked=True)


def _has_avx2() -> bool:
    """Whether this build has the AVX2 and FMA code, whose roundings are known to the bit. AVX-512 builds have it."""
    return bool(library().ggml_cpu_has_avx2() and library().ggml_cpu_has_fma())


def _numerics(*, vectorised: bool) -> Numerics:
    """float32 between the operators; Q8_0 of each row of x, then one dot product for each output, of int8 products that
    are added as integers in groups, times the two scales of a block, which are exact together.

    vectorised, AVX2 and FMA, simulated bit for bit in the tests: ggml_vec_dot_mxfp4_q8_0 (ggml-cpu/arch/x86/quants.c)
    has groups of 4, 8 lanes for even and 8 for odd blocks of 32, one fused multiply-add each; with odd K / 32 the last
    block follows as one group. Repacked (gemv_q4_b32_8x8_q8_0_lut_avx in repack.cpp there): groups of 32 in order.
    else, other instruction sets and the portable C: groups of 32 (AVX: 8) in order or in 8 lanes, and a product that is
    rounded before it is added.
    exp: ggml_v_expf (ggml-cpu/vec.h) is within 1.46 + 0.5 ulp, libm's expf and tanhf are within 1 and 2 (glibc manual).
    """
    quantizer: Quantizer = "q8_0" if vectorised else "q8_0_portable"
    gemm = Accumulator(group=4, product_roundings=0 if vectorised else 1, lanes=(1, 16) if vectorised else (1, 8))
    return Numerics(
        weights="exact",
        hidden_quantizer=quantizer,
        gemm1=gemm,
        gemm1_output="float32",
        bias_before_rounding=False,
        activation=Transcendental(exp_ulps=2.0, tanh_ulps=2.0),
        intermediate="float32",
        intermediate_quantizer=quantizer,
        gemm2=gemm,
        gemm2_output="float32",
    )


class _Layer:
    """One problem as a ggml graph, ready to be computed any number of times."""

    def __init__(self, problem: Problem, *, repacked: bool) -> None:
        self._problem = problem
        self._repacked = repacked and problem.experts_local > 1
        self._graph: Graph | None = None
        local = problem.local_ids.cpu()
        live = local >= 0
        if not bool(live.any()):
            return
        weights = problem.router_weights.cpu()
        token = torch.arange(problem.tokens, dtype=torch.int32)[:, None].expand_as(local)
        # ggml's table: ids int32 and weights float32 [M', K'], the row of x for each of the M' (None: all in order),
        # and the token that each of the M' * K' entries belongs to.
        if bool(live.all()):
            self._ids, self._weights, self._rows = local.to(torch.int32), weights, None
        else:
            self._ids, self._weights, self._rows = local[live][:, None].to(torch.int32), weights[live], token[live]
        self._token = token[live]
        self._experts, self._parameters = self._parameter_groups()
        self._graph = Graph(
            operators=32 + 16 * len(self._parameters),
            poison=problem.scenario.execution.poison,
            # The repacked mul_mat_id reserves 8 bytes for each token and expert, but writes 8 for each slot (llama.cpp
            # pull request 26310): what it writes beyond its work space must hit nothing else.
            guard=64 + 8 * self._ids.numel(),
        )
        self._output = self._build(self._graph)

    def run(self) -> torch.Tensor:
        problem = self._problem
        if self._graph is None:
            return problem.hidden_states.new_zeros(problem.tokens, problem.hidden, dtype=problem.output_dtype)
        self._graph.compute()
        return self._output.to(problem.hidden_states.device, problem.output_dtype, copy=True)

    def _parameter_groups(self) -> tuple[list[list[int]], list[dict[str, float]]]:
        """The experts in use that share activation parameters, and those parameters by name."""
        params = self._problem.activation
        vectors = {name: getattr(params, name) for name in ("alpha", "beta", "limit", "linear_beta")}
        table = {name: vector.tolist() for name, vector in vectors.items() if vector is not None}
        groups: dict[tuple[float, ...], list[int]] = {}
        for expert in torch.unique(self._ids).tolist():
            groups.setdefault(tuple(column[expert] for column in table.values()), []).append(expert)
        return list(groups.values()), [dict(zip(table, values, strict=True)) for values in groups]

    def _build(self, graph: Graph) -> torch.Tensor:
        """Add the layer to `graph`. Returns the memory of its result, float32 [M, H]."""
        problem = self._problem
        hidden, inner = problem.hidden, problem.intermediate
        count, used = self._ids.shape
        x = states = graph.leaf(problem.hidden_states.float(), hidden, problem.tokens)
        if self._rows is not None:
            x = graph.op("get_rows", x, graph.leaf(self._rows, count))
        table = graph.leaf(self._ids, used, count)
        out = graph.op("reshape_3d", x, hidden, 1, count)
        out = self._project(graph, out, table, problem.w13, problem.w13_scale, problem.w13_bias)
        out = self._activate(graph, graph.op("reshape_2d", out, 2 * inner, used * count))
        out = graph.op("reshape_3d", out, inner, used, count)
        out = self._project(graph, out, table, problem.w2, problem.w2_scale, problem.w2_bias)
        out = graph.op("mul", out, graph.leaf(self._weights, 1, used, count))
        out = graph.op("reshape_2d", out, hidden, used * count)
        # Adds row i of `out` to row token[i] of zeros; of its last argument ggml takes only the shape.
        out = graph.op("get_rows_back", out, graph.leaf(self._token, used * count), states)
        return graph.result(out).view(problem.tokens, hidden)

    def _project(
        self, graph: Graph, x: Any, table: Any, packed: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
    ) -> Any:
        """One GEMM of the experts in `table`: x [M', K' or 1, K] -> [M', K', N]."""
        experts, rows = packed.shape[:2]
        make = graph.repacked if self._repacked else graph.leaf
        weight = make(to_block_mxfp4(packed, scale), packed.shape[2] * 2, rows, experts, kind="MXFP4")
        out = graph.op("mul_mat_id", weight, x, table)
        return out if bias is None else graph.op("add_id", out, graph.leaf(bias.float(), rows, experts), table)

    def _activate(self, graph: Graph, gate_up: Any) -> Any:
        """[R, 2I] -> [R, I]. ggml's operators take one set of parameters: each group of experts goes through alone."""
        inner, kind = self._problem.intermediate, self._problem.activation.kind
        if len(self._experts) == 1:
            return _activation(graph, gate_up, inner, kind, self._parameters[0])
        ids = self._ids.flatten()
        out = graph.empty(inner, len(ids))
        for experts, parameters in zip(self._experts, self._parameters, strict=True):
            rows = torch.isin(ids, torch.tensor(experts)).nonzero().flatten().to(torch.int32)
            index = graph.leaf(rows, len(rows))
            part = _activation(graph, graph.op("get_rows", gate_up, index), inner, kind, parameters)
            out = graph.op("set_rows", out, part, index)
        return out


def _activation(graph: Graph, gate_up: Any, inner: int, kind: str, parameters: dict[str, float]) -> Any:
    """[R, 2I], rows [gate; up] -> [R, I]."""
    if kind == "swiglu":
        return graph.op("swiglu", gate_up)
    gate, up = graph.columns(gate_up, 0, inner), graph.columns(gate_up, inner, inner)
    if kind == "swiglu_oai":
        alpha, beta, limit = (parameters[name] for name in ("alpha", "beta", "limit"))
        if beta == 1.0:
            return graph.op("swiglu_oai", gate, up, alpha, limit)
        # ggml fixes beta at 1. Its operator on up = 0 is the other factor, g * sigmoid(alpha * g) * (0 + 1). That 0 is
        # NaN where up is NaN, which ggml_clamp would turn into the limit; ggml_clamp works in place, hence cont.
        nothing = graph.op("mul", graph.op("tanh", up), graph.scalar(0.0))
        gated = graph.op("swiglu_oai", gate, nothing, alpha, limit)
        linear = graph.op("clamp", graph.op("cont", up), -limit, limit)
        return graph.op("mul", gated, graph.op("add", linear, graph.scalar(beta)))
    gated = graph.op("mul", _capped(graph, gate, parameters["beta"]), graph.op("sigmoid", gate))
    return graph.op("mul", gated, _capped(graph, up, parameters["linear_beta"]))


def _capped(graph: Graph, x: Any, limit: float) -> Any:
    """limit * tanh(x / limit), with a true division: ggml_scale would multiply by a rounded 1 / limit."""
    scalar = graph.scalar(limit)
    return graph.op("mul", graph.op("tanh", graph.op("div", x, scalar)), scalar)
