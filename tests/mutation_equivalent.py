"""Mutants that nobody can tell from the original, and why; `*` in a name stands for anything."""

_TWO_WAYS = "chooses between two ways to the same number, of which the longer is right everywhere and the shorter near the edge too"
_GRIDS = "orders grids, which set_pdl lets overlap: the emulator runs one after another"
_RECONVERGES = "every lane arrives at the barrier behind it and lane 0 publishes its own inits: it only reconverges the warp"
_LOADS_HOLD = "the predicate of loads that have no form without one: behind the branch on the same condition it is always true"
_PAST_K = "blocks past the end of K are copies of nothing: zeros into a stage that nobody reads any more"

_FREES = "gives operand registers back, of which the emulator has any number; the sums are waited for behind the last record"
_FEWER = "fewer stages whose weights come early: the producer asks for the others as ever"
_UNMIXED = "lanes share nothing there: it keeps ptxas from mixing what follows with the products"
_NO_TILE = "goes on to a tile more, of which the loop in it asks for no stage"
_NONE_EXPECTED = "a CTA that owns no register expects no bytes: the phase that it would wait for is over at once"
_ALL_STORE = "all 128 threads store the same box of the same bytes: slower, not wrong"
_ANOTHER_STORES = "thread 1 stores the tile in the place of thread 0; all threads commit and wait alike"

EQUIVALENT: dict[str, str] = {
    "int4_fold.stage_folded: drop wait: wgmma.wait #0": _FREES,
    "int4_stage.stage: drop barrier: thread.syncwarp #0": _UNMIXED,
    "int4_halves.stage_halved: drop barrier: thread.syncwarp #0": _UNMIXED,
    "int4_f16_sums.stage_f16: drop barrier: thread.syncwarp #0": _UNMIXED,
    "int4_fold.stage_folded: wait count: wgmma.wait +1 #0": _FREES,
    "*: drop wait: thread.griddepcontrol_wait #*": _GRIDS,
    "epilogue.store_tile: drop predicate: tma.store_2d_if #0": _ALL_STORE,
    "epilogue.store: edge: u32(cuda.threadIdx.x) % 128 -1 #0": _ANOTHER_STORES,
    "pipeline.next_slot: stage count: num_stages -1 #0": "producer and consumers both call it: a ring of one stage less",
    "sm80_gemm.kernel: drop predicate: if k_block + NUM_STAGES < k_blocks #0": _PAST_K,
    "sm80_gemm.kernel: edge: k_block + NUM_STAGES < k_blocks #0": _PAST_K,
    "sm80_gemm.kernel: stage count: NUM_STAGES -1 #1": _PAST_K,
    "sm80_gemm.kernel: wait count: cp_async.wait +1 #2": "the last group holds no copy: the loop has waited for all blocks",
    "sm80_parts.copy: edge: at < last #0": "the smaller of two numbers, which are equal where the comparisons differ",
    "sm80_parts.load: edge: r < last #0": "the smaller of two numbers, which are equal where the comparisons differ",
    "sm90_fp8_gemm_1d2d.consumer: edge: n_idx % 128 +1 #0": "segments begin at multiples of 8 columns, tiles at 16: one more crosses no edge",
    "sm90_fp8_gemm_1d2d.consumer: drop predicate: if IS_STAGGERED and warp_idx >= 4 #0": "who begins later is a matter of time, not of order",
    "sm90_fp8_gemm_1d2d.consumer: edge: warp_idx >= 4 #0": "who begins later is a matter of time, not of order",
    "sm90_fp8_gemm_1d2d.run: drop predicate: if warp_idx == CONSUMER_WARPS and lane_idx == 0 #0": "guards prefetches of descriptors: hints",
    "sm90_fp8_gemm_1d2d_resident.first_weights: edge: tile < tiles #0": _NO_TILE,
    "sm90_fp8_gemm_1d2d_resident.producer: edge: tile < tiles #0": "goes on to a round more, in which no warpgroup has a tile to load for",
    "sm90_fp8_gemm_1d2d_resident.store: drop predicate: tma.store_2d_if #0": _ALL_STORE,
    "sm90_fp8_gemm_1d2d_resident.store: edge: u32(cuda.threadIdx.x) % 128 -1 #0": _ANOTHER_STORES,
    "sm90_fp8_gemm_1d2d_resident_rules.bind: box: laid.d: plan.block_m +1 #0": "the row more lies past the last token, where nothing is written",
    "sm90_fp8_gemm_1d2d_*.multiply: wait count: wgmma.wait +1 #1": "the wait before it has waited for the only group",
    "sm90_fp8_gemm_1d2d_*.multiply: wait count: wgmma.wait +1 #2": "the wait before it has waited for the only group",
    "sm90_fp8_gemm_1d2d_*.multiply: wait count: wgmma.wait +1 #3": "the wait before it has waited for the only group",
    "sm90_fp8_gemm_1d2d_*.kernel: drop barrier: thread.syncwarp #0": _RECONVERGES,
    "sm90_fp8_gemm_1d2d_swap_ab.add_up: drop predicate: if i < end #0": _NONE_EXPECTED,
    "sm90_fp8_gemm_1d2d_swap_ab.add_up: edge: i < end #0": _NONE_EXPECTED,
    "sm90_fp8_gemm_1d2d_swap_ab.first_weights: phase: the first Slot #0": "of these slots only the stage is used: nobody waits in the first round",
    "sm90_fp8_gemm_1d2d_*.first_weights: stage count: NUM_STAGES -1 #0": _FEWER,
    "sm90_fp8_gemm_1d2d_*.first_weights: stage count: NUM_STAGES -1 #1": _FEWER,
    "sm90_fp8_gemm_1d2d_*.first_weights: stage count: NUM_STAGES +1 #0": _NO_TILE,
    "sm90_fp8_gemm_1d2d_*.first_weights: edge: asked < NUM_STAGES #0": _NO_TILE,
    "sm90_fp8_gemm_1d2d_*.first_weights: stage count: NUM_STAGES +1 #2": "it moves on NUM_STAGES times at most; nobody looks at the last",
    "sm90_int4_gemm.grid_of_tiles: edge: left <= u32(cuda.gridDim.x) // TAIL #0": "as many tiles as pairs: shared or whole, the sums are the same",
    "sm90_int4_gemm.produce: drop barrier: thread.syncwarp #0": _RECONVERGES,
    "int4_gemv_parts.loaded: drop predicate: memory.load_global_u*_if #*": _LOADS_HOLD,
    "int4_gemv_parts.load: drop predicate: memory.load_global_u32_if #0": _LOADS_HOLD,
    "sm90_int4_gemv.fetch: edge: record < records #1": _LOADS_HOLD,
    "quantize_scales.quotient: *": _TWO_WAYS,
    "quantize_scales.scale_of: edge: bits < NORMAL_BITS #0": _TWO_WAYS,
    "quantize_scales.scale_of: edge: convert.f32_to_bits(largest) < INFINITY #0": "of infinity the quotient is NaN too, if with other bits on a GPU",
    "smxx_cast.codes_of: drop predicate: if is_any_poisoned(inverses) #0": _TWO_WAYS,
    "smxx_quantize.codes_of: drop predicate: if bits >= LARGEST_BITS #0": _TWO_WAYS,
    "smxx_quantize.kernel: edge: col - lane * WIDTH < k #0": "a round more, of which every load lies outside and reads zeros",
    "smxx_quantize.kernel: edge: row < m #0": "a round more, of which every load lies outside and reads zeros",
    "smxx_layout.store: edge: row < rows #1": "rows of a multiple of four are stored by 16 bytes: here the comparisons never differ",
    "epilogue.store_float32: edge: left + 1 < n #0": "D has an odd number of columns only in a padded buffer of ours, whose padding it writes",
    "sm80_int4_gemm.write_tables: edge: tid < TABLE_WORDS #0": "the word behind the tables lies in the 16 bytes that alignment always leaves",
    "smxx_layout.kernel: edge: row < rows #0": "the value of a row that is not there, which is not stored",
}
