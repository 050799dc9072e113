"""Kernels called without difftest: the parts that `difftest report` puts into a script for people upstream.

Each module of a kernel needs torch and the kernel's package alone, and defines functions of one namespace `p`: the
canonical tensors of `oracles.problem.Problem` by name (hidden_states, topk_ids, topk_weights, w13, w13_scale, w2,
w2_scale; w13_bias, w2_bias, hidden_q and hidden_scale or None), `first_expert`, `num_experts`, `ep_size`, `ep_rank`,
`moe_tp_size`, `moe_tp_rank`, `routed_scaling_factor`, `activation` (its kind), `parameters` (float32 [E_local] by
name), `output_dtype`, and as the scenario's execution has them `poison` (the byte that memory of the kernel's caller
holds), `pdl`, `fused_finalize` and `tactic`. A function NAME(p) answers [M, H]. Beside it there may be
NAME_into(p, output), which writes into the caller's output, and NAME_replays(questions), of a kernel that captures its
call: the answers of one capture, in which x, ids and router weights of each question are written in turn.

A router's `p` has `logits` [M, E], `bias` [E] or None, `top_k`, `groups`, `topk_groups`, `scoring`, `renormalise` and
`routed_scaling_factor`; it answers (topk_ids int32 [M, K], topk_weights float32 [M, K]).

`expected` and `routing` are the layer and the router by their definition, `claims` and `routing_claims` what the checks
hold their answers to.
"""
