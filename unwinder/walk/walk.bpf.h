/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * walk: list the Python frames of a PyThreadState, in the kernel or, with -DRS_HOST, in an ordinary
 * library.
 *
 * User space prepares (offsets.py packs struct rs_offsets, threads.py finds the PyThreadState).
 * This file only reads user memory with one helper and accesses no kernel structure. Whatever it
 * reads may be forged or torn: every read may fail, every offset into the scratch area is masked,
 * and the loop ends after a fixed number of steps.
 *
 * Cost: two reads per frame; 2.4 us for 10 frames, 22 us for 128 (measured.md).
 */
#ifndef RS_WALK_BPF_H
#define RS_WALK_BPF_H

#ifdef RS_HOST
#include <stdint.h>
#include <string.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
/* Returns 0 and fills `to`, or returns another number. Set by the test before it walks. */
static int (*rs_host_read)(void *to, u32 size, u64 address);
#define RS_READ(to, size, address) rs_host_read((to), (u32)(size), (address))
#define RS_MASK(value, mask) ((value) & (mask))
#define RS_FORGET(place) (place)
#define RS_OPAQUE(value) (value)
#else
/* For a reader other than the helper, define RS_READ before including this file. */
#ifndef RS_READ
#define RS_READ(to, size, address) bpf_probe_read_user((to), (size), (void *)(address))
#endif
/*
 * In assembly, so that the compiler neither drops the mask nor moves it away from the access that
 * the verifier checks.
 */
#define RS_MASK(value, mask)                                                                                                   \
	({                                                                                                                     \
		u64 _rs_value = (value);                                                                                       \
		asm volatile("%0 &= %1" : "+r"(_rs_value) : "i"(mask));                                                        \
		_rs_value;                                                                                                     \
	})
/*
 * A value unknown to the compiler, so that it makes no branch of it: each would be checked both
 * ways in every step.
 */
#define RS_OPAQUE(value)                                                                                                       \
	({                                                                                                                     \
		u64 _rs_opaque = (value);                                                                                      \
		asm volatile("" : "+r"(_rs_opaque));                                                                           \
		_rs_opaque;                                                                                                    \
	})
/* Loads from memory each time, so that the compiler does not keep the value in a register across steps. */
#define RS_FORGET(place) (*(volatile typeof(place) *)&(place))
#endif

#ifndef RS_MAX_FRAMES
#define RS_MAX_FRAMES 128 /* a power of two; the innermost frames are stored, `truncated` tells that the roots are missing */
#endif
#define RS_MAX_STEPS (RS_MAX_FRAMES + RS_MAX_FRAMES / 4) /* frames and the shim frames between them */
#define RS_SPAN 256				       /* SPAN_CAP_BYTES of offsets.py: the most bytes read at once, plus one */
#define RS_ABSENT 0xffff
#define RS_SLOTS 2 /* scratch areas per CPU, see stack.bpf.h */
#if (RS_MAX_FRAMES & (RS_MAX_FRAMES - 1)) != 0
#error "RS_MAX_FRAMES must be a power of two"
#endif

enum rs_walk_status {
	RS_WALK_OK,
	RS_WALK_NO_FRAME,	   /* the thread runs no Python code now */
	RS_WALK_STALE_TSTATE,	   /* the PyThreadState is not, or no longer, that of the expected thread */
	RS_WALK_READ_FAILED,	   /* a page is not in memory, or the pointer is nonsense; frames so far are kept */
	RS_WALK_CYCLE_OR_TOO_DEEP, /* frames form a ring, or there are only shim frames */
};

/*
 * One interpreter's layout, written by FrameOffsets.pack(). A "span" is the part of a structure
 * that contains all needed fields; it is read at once, and the fields' offsets count from its
 * start. RS_ABSENT: there is no such field.
 */
struct rs_offsets {
	u64 none;     /* address of _Py_NoneStruct, or 0 */
	u64 tag_mask; /* the address bits of a frame's code field */
	u16 tstate_start, tstate_size;
	u16 tstate_frame, tstate_thread_id; /* in the span */
	u16 cframe_frame;		    /* in _PyCFrame; RS_ABSENT: tstate_frame is the frame itself */
	u16 frame_start, frame_size;
	u16 frame_code, frame_previous, frame_last, frame_owner; /* in the span */
	u16 first_shim_owner;					 /* frames with this owner or a higher one are no functions */
	u16 lasti_narrow;   /* 32 where the frame has a counter (int), 0 where it has a pointer into the bytecode */
	u16 lasti_per_unit; /* 1 where that is in bytes, 0 in code units */
	u16 code_start, code_size;
	u16 code_argcount, code_kwonlyargcount, code_flags, code_firstlineno; /* in the span */
	u16 code_bytecode;						      /* of the first instruction, in the code object */
};

struct rs_frame {
	u64 code;     /* address of the code object */
	s32 lasti;    /* code units (2 bytes) from the start of the bytecode; -1 where unknown or before the first */
	u32 checksum; /* of the code object, see rs_checksum; 0 where it could not be read */
};

struct rs_stack {
	u32 n;
	u32 truncated; /* 1: there are more frames towards the root */
	u32 status;    /* enum rs_walk_status */
	u32 pad;
	struct rs_frame frames[RS_MAX_FRAMES]; /* innermost first; those from `n` on are leftovers of earlier walks */
};

/*
 * Where a thread is, without the frames above it: equal leaves, taken without a switch in between,
 * mean equal stacks.
 */
struct rs_leaf {
	u64 frame;
	u64 code;
	u64 last; /* f_lasti, prev_instr or instr_ptr as in memory */
	u64 previous;
};

/*
 * Working data of the walk. `frame`, `mark` and the count in struct rs_stack are in memory and not
 * in registers, where the verifier would follow every possible value: 640,000 instructions to check
 * instead of 60,000 (kernel 6.18); with numbers in place of branches 31,000.
 */
struct rs_span {
	u64 frame;
	u64 mark;
	u8 bytes[RS_SPAN + 8]; /* an 8-byte field may begin at any masked offset */
};

#ifdef RS_HOST
static struct rs_span *rs_span_scratch(int slot)
{
	static struct rs_span span;
	(void)slot;
	memset(&span, 0, sizeof(span));
	return &span;
}
static inline u64 rs_pick64(const struct rs_span *span, u64 offset)
{
	u64 value;
	memcpy(&value, span->bytes + RS_MASK(offset, RS_SPAN - 1), sizeof(value));
	return value;
}
static inline u32 rs_pick32(const struct rs_span *span, u64 offset)
{
	return (u32)rs_pick64(span, offset);
}
static inline u8 rs_pick8(const struct rs_span *span, u64 offset)
{
	return (u8)rs_pick64(span, offset);
}
#else
/*
 * Not on the BPF stack because offsets into it vary, which old verifiers refuse there. Same rules
 * of use as for the result (stack.bpf.h).
 */
BPF_PERCPU_ARRAY(rs_spans, struct rs_span, RS_SLOTS);
static __always_inline struct rs_span *rs_span_scratch(int slot)
{
	return rs_spans.lookup(&slot);
}
#define rs_pick64(span, offset) (*(volatile u64 *)((span)->bytes + RS_MASK(offset, RS_SPAN - 1)))
#define rs_pick32(span, offset) (*(volatile u32 *)((span)->bytes + RS_MASK(offset, RS_SPAN - 1)))
#define rs_pick8(span, offset) (*(volatile u8 *)((span)->bytes + RS_MASK(offset, RS_SPAN - 1)))
#endif

static __always_inline int rs_read_span(struct rs_span *span, u32 size, u64 address)
{
	return RS_READ(span->bytes, RS_MASK(size, RS_SPAN - 1), address);
}

/*
 * Find the innermost frame of the thread, which may be a shim; 0 in *frame comes with a status
 * other than RS_WALK_OK.
 */
static __always_inline int rs_top_frame(const struct rs_offsets *o, struct rs_span *span, u64 tstate, u64 expected, u64 *frame)
{
	u64 top = 0;
	*frame = 0;
	if (rs_read_span(span, o->tstate_size, tstate + o->tstate_start))
		return RS_WALK_READ_FAILED;
	if (rs_pick64(span, o->tstate_thread_id) != expected)
		return RS_WALK_STALE_TSTATE;
	top = rs_pick64(span, o->tstate_frame);
	if (top && o->cframe_frame != RS_ABSENT) {
		u64 cframe = top;
		if (RS_READ(&top, sizeof(top), cframe + o->cframe_frame))
			return RS_WALK_READ_FAILED;
	}
	if (!top)
		return RS_WALK_NO_FRAME;
	*frame = top;
	return RS_WALK_OK;
}

/*
 * Numbers in place of branches: every branch inside the loop doubles the verifier's work until the
 * paths join again.
 */
static __always_inline u64 rs_not_zero(u64 value)
{
	return RS_OPAQUE(value | -value) >> 63;
}

/*
 * Distinguish a code object from another one later at the same address. names/code.py computes the
 * same value.
 */
static __always_inline u32 rs_checksum(const struct rs_offsets *o, struct rs_span *span, u64 code, u64 function)
{
	/*
	 * Nothing is read for a shim frame. Fails where the code object is not in memory now; user
	 * space can have the page brought in.
	 */
	u64 failed = rs_not_zero((u64)(s64)rs_read_span(span, o->code_size & -function, code + o->code_start));
	u32 argcount = rs_pick32(span, o->code_argcount);
	u32 kwonlyargcount = rs_pick32(span, o->code_kwonlyargcount);
	u32 flags = rs_pick32(span, o->code_flags);
	u32 firstlineno = rs_pick32(span, o->code_firstlineno);
	return ((argcount << 25) + (kwonlyargcount << 18) + (flags << 10) + firstlineno) & (u32)(failed - 1);
}

static __always_inline s32 rs_lasti(const struct rs_offsets *o, u64 last, u64 code)
{
	u32 narrow = o->lasti_narrow & 63;
	/* 0 where the frame counts by itself */
	u64 start = (code + o->code_bytecode) & (u64)((s64)RS_OPAQUE((u64)narrow - 1) >> 63);
	s64 units = (s64)((last - start) << narrow) >> narrow >> (o->lasti_per_unit & 63);
	/* Below the first instruction in a frame that just began; no function has 32 Mi units of bytecode. */
	return (s32)(units | (s64)RS_OPAQUE(units) >> 63 | (s64)RS_OPAQUE((s64)(32 << 20) - units) >> 63);
}

/*
 * Fill `out` with the frames of a thread, innermost first, and return out->status. `expected` is
 * the thread_id that the PyThreadState must contain (pthread_self() of the thread): a freed and
 * reused one is not followed. `slot` selects the scratch area.
 */
static __always_inline int rs_walk(const struct rs_offsets *o, u64 tstate, u64 expected, struct rs_stack *out, int slot)
{
	struct rs_span *span = rs_span_scratch(slot);
	u64 frame = 0;
	int status;
	u32 step;

	out->n = 0;
	out->truncated = 0;
	out->pad = 0;
	out->status = RS_WALK_READ_FAILED;
	if (!span)
		return RS_WALK_READ_FAILED;
	status = rs_top_frame(o, span, tstate, expected, &frame);
	out->status = status;
	if (status != RS_WALK_OK)
		return status;
	span->frame = frame;
	span->mark = frame;
	for (step = 0; step < RS_MAX_STEPS; step++) {
		u64 here = RS_FORGET(span->frame), n = RS_FORGET(out->n), code, last, previous;

		if (!here || n >= RS_MAX_FRAMES)
			break;
		if (rs_read_span(span, o->frame_size, here + o->frame_start)) {
			out->status = RS_WALK_READ_FAILED;
			break;
		}
		code = rs_pick64(span, o->frame_code) & o->tag_mask;
		last = rs_pick64(span, o->frame_last);
		previous = rs_pick64(span, o->frame_previous);
		/* Where frames have no owner, first_shim_owner is higher than any byte. */
		u64 owner = rs_pick8(span, o->frame_owner);
		u64 function = rs_not_zero(code) & rs_not_zero(code ^ o->none) & (RS_OPAQUE(owner - o->first_shim_owner) >> 63);
		/* A shim frame is written as well, and overwritten by the next frame. */
		struct rs_frame *slot = &out->frames[RS_MASK(n, RS_MAX_FRAMES - 1)];
		slot->code = code;
		slot->lasti = rs_lasti(o, last, code);
		slot->checksum = rs_checksum(o, span, code, function);
		out->n = n + function;
		/* Brent's algorithm: a cycle is detected within twice its length. */
		if (previous == here || previous == span->mark) {
			out->status = RS_WALK_CYCLE_OR_TOO_DEEP;
			break;
		}
		if (!(step & (step + 1)))
			span->mark = here;
		span->frame = previous;
	}
	out->truncated = span->frame != 0;
	if (!out->n && out->status == RS_WALK_OK)
		out->status = span->frame ? RS_WALK_CYCLE_OR_TOO_DEEP : RS_WALK_NO_FRAME;
	return out->status;
}

/*
 * Identify the innermost frame: two or three reads. Shim frames are not skipped here, they too
 * differ from each other.
 */
static __always_inline int rs_leaf(const struct rs_offsets *o, u64 tstate, u64 expected, struct rs_leaf *out)
{
	struct rs_span *span = rs_span_scratch(0);
	u64 frame = 0;
	int status;

	out->frame = out->code = out->last = out->previous = 0;
	if (!span)
		return RS_WALK_READ_FAILED;
	status = rs_top_frame(o, span, tstate, expected, &frame);
	if (status != RS_WALK_OK)
		return status;
	if (rs_read_span(span, o->frame_size, frame + o->frame_start))
		return RS_WALK_READ_FAILED;
	out->frame = frame;
	out->code = rs_pick64(span, o->frame_code) & o->tag_mask;
	out->previous = rs_pick64(span, o->frame_previous);
	out->last = rs_pick64(span, o->frame_last);
	if (o->lasti_narrow)
		out->last = (u32)out->last;
	return RS_WALK_OK;
}

#endif
