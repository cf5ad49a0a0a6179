/*
 * bcc's compiler includes this file of the kernel's headers before every text. Our programs need
 * nothing of it: see kernel.bpf.h.
 */
