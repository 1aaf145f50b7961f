/* The fat binary that nvcc made (CKPTD_KERNELS_FILE), as read-only data. */
    .section .rodata
    .balign 64
    .globl ckptd_kernel_image
    .hidden ckptd_kernel_image
ckptd_kernel_image:
    .incbin CKPTD_KERNELS_FILE
    .globl ckptd_kernel_image_end
    .hidden ckptd_kernel_image_end
ckptd_kernel_image_end:
    .section .note.GNU-stack, "", %progbits
