// Functions for tests/unit/probes/test_returns_aarch64.py. Made into returns.so by
//   aarch64-linux-gnu-gcc -shared -nostdlib -Wl,-Bsymbolic -Wl,-z,max-page-size=4096 -Wl,--build-id=none -s -o returns.so returns.s
.macro begin name
    .globl \name
    .type \name, %function
    \name:
    .cfi_startproc
.endm
.macro finish name
    .cfi_endproc
    .size \name, .-\name
.endm
.text
begin two_returns
    paciasp
    cbnz w0, 1f
    mov w0, 3
    autiasp
.globl at_first
at_first: ret
1:  stp x29, x30, [sp, -16]!
    .cfi_adjust_cfa_offset 16
    mov x29, sp
    bl elsewhere
    ldp x29, x30, [sp], 16
    .cfi_adjust_cfa_offset -16
    autiasp
.globl at_second
at_second: ret
finish two_returns

begin forwards                          // nothing but a jump: its end is the end of what it jumps to
    bti c
    b hidden
finish forwards

.type hidden, %function
hidden:
    .cfi_startproc
    mov w0, 7
.globl at_hidden
at_hidden: ret
    .cfi_endproc
    nop

begin tail_calls
    cbz w0, 2f
    tbnz w0, 1, 3f
    b.ge 4f                             // conditional branches inside are no ends
.globl at_tail
at_tail: b two_returns
2:  b .Lcold                            // the cold part of the same function: no end of it
3:
.globl at_linkage
at_linkage: b elsewhere                 // through the procedure linkage table
4:  adr x1, 2b
    ldr x2, [x1]
.globl at_register
at_register: br x2                      // a table of a switch, or a tail call: the probe looks at the stack pointer
finish tail_calls

begin returns_signed
    paciasp
.globl at_signed
at_signed: retaa
finish returns_signed

begin endless
5:  b 5b
finish endless

.section .text.unlikely, "ax"
    .cfi_startproc
    nop
.Lcold:
    brk 1
    .cfi_endproc
