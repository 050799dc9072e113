"""Kernels called without difftest: the parts that `difftest report` puts into a script for people upstream.

Each module needs torch and the kernel's package alone, and defines functions of one namespace `p`: the canonical
tensors of `oracles.problem.Problem` by name (hidden_states, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale,
w13_bias, w2_bias), `first_expert`, `num_experts`, `ep_size`, `ep_rank`, `moe_tp_size`, `moe_tp_rank`,
`routed_scaling_factor`, `activation` (its kind), `parameters` (float32 [E_local] by name) and `output_dtype`.
"""
