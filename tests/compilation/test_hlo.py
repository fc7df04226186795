"""Reading programs: a text written by hand, whose costs are known."""

from padir.compilation.hlo import Collective, Loop, analyse

PROGRAM = """\
HloModule jit_f, is_scheduled=true

FileNames
1 "/somewhere/site-packages/jax/numpy.py"
2 "/somewhere/padir/nn/layers.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}
2 {file_name_id=2 function_name_id=1 line=40 end_line=40 column=1 end_column=2}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=2}

%body (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %all-reduce.1 = f32[4]{0} all-reduce(%p), replica_groups={{0,1}}, to_apply=%sum
  ROOT %b = f32[4]{0} fusion(%all-reduce.1), kind=kLoop, calls=%inner, metadata={op_name="b" stack_frame_id=2}, \
backend_config={"estimated_cycles":"10"}
}

%condition (c: f32[4]) -> pred[] {
  %c = f32[4]{0} parameter(0)
  ROOT %less = pred[] fusion(%c), kind=kLoop, calls=%inner, backend_config={"estimated_cycles":"2"}
}

%cheap (x: f32[4]) -> f32[4] {
  ROOT %x = f32[4]{0} copy(%x.1), backend_config={"estimated_cycles":"5"}
}

%dear (y: f32[4]) -> f32[4] {
  ROOT %y = f32[4]{0} copy(%y.1), backend_config={"estimated_cycles":"50"}
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %first = f32[4]{0} fusion(%a), kind=kLoop, calls=%inner, metadata={op_name="first" stack_frame_id=1}, \
backend_config={"estimated_cycles":"100"}
  %send.1 = (bf16[8,2]{1,0}, u32[], token[]) send(%first, %t), is_host_transfer=true, \
frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
  %known = f32[4]{0} while(%first), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %open = f32[4]{0} while(%known), condition=%condition, body=%body
  %outfeed.1 = token[] outfeed(%open, %t)
  ROOT %chosen = f32[4]{0} conditional(%i, %a, %a), branch_computations={%cheap, %dear}
}
"""


GPU = """\
%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
  %all-reduce-start = (f32[4]{0}, f32[2,3]{1,0}) all-reduce-start(%p, %q), channel_id=1, to_apply=%sum
  %all-reduce-done = (f32[4]{0}, f32[2,3]{1,0}) all-reduce-done(%all-reduce-start)
  ROOT %all-gather-start = ((bf16[2,4]{0,1}, /*index=1*/f32[3]{0}), (bf16[16,4]{0,1}, f32[24]{0})) \
all-gather-start(%r, %s), dimensions={0}
}

%idle (e: f32[64]) -> f32[64] {
  ROOT %e = f32[64]{0} parameter(0)
}

%busy (f: f32[64]) -> f32[64] {
  %f = f32[64]{0} parameter(0)
  ROOT %all-to-all-start = ((f32[64]{0}), f32[64]{0}) all-to-all-start(%f), dimensions={0}
}

%scatter (c: f32[64]) -> f32[8] {
  ROOT %reduce-scatter = f32[8]{0} reduce-scatter(%c), dimensions={0}, to_apply=%sum
}

%buffer (d: f32[64]) -> f32[8] {
  %reduce-scatter-start = ((f32[64]{0}), f32[8]{0}) reduce-scatter-start(%d), dimensions={0}, to_apply=%sum
  ROOT %async = ((f32[64]{0}), f32[8]{0}, s32[]) async-start(%d), calls=%scatter
}

ENTRY %main (a: f32[64]) -> f32[8] {
  %send = (f32[4]{0}, u32[], token[]) send(%a, %t), channel_id=2
  %callback = f32[4]{0} custom-call(%a), custom_call_target="xla_ffi_python_gpu_callback"
  %loop = (s32[], f32[4]{0}) while(%a), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0","step":"1"}}
  %chosen = f32[64]{0} conditional(%i, %a, %a), branch_computations={%idle, %busy}
  ROOT %call = f32[8]{0} call(%a), to_apply=%buffer
}
"""


def test_collectives_of_gpus_start_and_end():
    """Each is counted once: what an all-reduce starts with are its results, what others start with has these second."""
    found = analyse(GPU)
    assert found.collectives == [
        Collective("all-gather", False, 5, 5 * (2 * 16 * 4 + 4 * 24)),
        Collective("all-reduce", False, 5, 5 * 4 * (4 + 6)),
        Collective("all-to-all", False, 1, 4 * 64),
        Collective("reduce-scatter", False, 2, 2 * 4 * 8),
    ]
    assert found.loops == [Loop(0, 5, True)] and found.cycles == 0
    # One device sends to another; only the callback goes to the host.
    assert found.host_transfers == 1


def test_cycles_of_loops_and_branches():
    found = analyse(PROGRAM, trips=4)
    assert found.loops == [Loop(12, 3, True), Loop(12, 4, False)]
    assert found.once == 100 + 50
    assert found.cycles == 150 + (3 + 4) * 12


COUNTED = """\
%condition (c: (s32[], f32[4])) -> pred[] {
  %limit = s32[]{:T(256)} constant(6)
  %c = (s32[], f32[4]{0}) parameter(0)
  %count = s32[]{:T(256)} get-tuple-element(%c), index=0
  ROOT %less = pred[]{:T(1024)} compare(%count, %limit), direction=LT, metadata={op_name="less"}
}

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
  ROOT %b = f32[4]{0} copy(%b.1), backend_config={"estimated_cycles":"7"}
}

ENTRY %main (a: f32[4]) -> f32[4] {
  ROOT %loop = (s32[], f32[4]{0}) while(%a), condition=%condition, body=%body
}
"""


def test_trips_of_a_loop_that_only_counts():
    """As those of micro-batches and of layers do."""
    assert analyse(COUNTED, trips=4).loops == [Loop(7, 6, True)]
    other = COUNTED.replace("compare(%count, %limit)", "compare(%limit, %count)")
    assert analyse(other, trips=4).loops == [Loop(7, 4, False)]


def test_a_branch_can_be_named():
    assert analyse(PROGRAM, branch=(2, 0)).once == 100 + 5
    assert analyse(PROGRAM, branch=(3, 0)).once == 100 + 50


def test_costs_by_the_innermost_source_line_of_ours():
    found = analyse(PROGRAM, trips=4)
    assert found.by_source == {"padir/nn/layers.py:40": 100 + 7 * 10, "other": 7 * 2 + 50}
    assert found.by_module == {"padir/nn/layers.py": 170, "other": 64}


def test_collectives_and_host_transfers():
    found = analyse(PROGRAM, trips=4)
    assert found.collectives == [
        Collective("all-reduce", False, 7, 7 * 16),
        Collective("all-reduce", True, 1, 32),
    ]
    assert found.host_transfers == 1
    assert found.opcodes["while"] == 2
