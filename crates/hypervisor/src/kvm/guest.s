# A guest that needs no firmware: it takes the CPU from the reset vector through real and protected mode to long mode,
# and does there what a kernel does first. AT&T syntax. It says how far it came with a letter on the first serial port:
#
#   r  real mode            p  protected mode             l  long mode, with paging
#   f  page faults          c  memory filled and copied   t  interrupts of the timer, while halted
#
# A '!' follows where what it found is wrong, and it halts. It lies at the beginning of an image of 64 KiB that ends at
# 4 GiB, and jumps to itself from the image's last 16 bytes. Memory: tables of pages at 0x10000, of interrupts at
# 0x8000, the stack below 0xa000, counters at 0x7000 and 0x7008.

    .set COM1, 0x3f8
    .set FAULTS, 0x7000
    .set TICKS, 0x7008

    .macro say letter
    movw $COM1, %dx
    movb $\letter, %al
    outb %al, %dx
    .endm

    .code16
    cli
    say 'r'
    # The segment's base is 0xffff0000 until it is loaded.
    lgdtl %cs:(kvm_guest_gdt_register - kvm_guest_start)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $8, $(kvm_guest_protected - kvm_guest_start + 0xffff0000)

    .code32
kvm_guest_protected:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $0xa000, %esp
    say 'p'
    # Page tables: the first 2 MiB, and the last below 4 GiB, where this lies. The rest comes by page faults.
    cld
    xorl %eax, %eax
    movl $0x10000, %edi
    movl $(0x6000 / 4), %ecx
    rep stosl
    movl $0x11003, 0x10000
    movl $0x12003, 0x11000
    movl $0x13003, 0x11008
    movl $0x14003, 0x11010
    movl $0x15003, 0x11018
    movl $0x00000083, 0x12000
    movl $0xffe00083, 0x15ff8
    movl %cr4, %eax
    orl $0x20, %eax
    movl %eax, %cr4
    movl $0x10000, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
    orl $0x80000000, %eax
    movl %eax, %cr0
    ljmpl $24, $(kvm_guest_long - kvm_guest_start + 0xffff0000)

    .code64
kvm_guest_long:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $0xa000, %esp
    say 'l'
    leaq kvm_guest_fault(%rip), %rax
    movl $(0x8000 + 14 * 16), %edi
    call kvm_guest_gate
    leaq kvm_guest_tick(%rip), %rax
    movl $(0x8000 + 32 * 16), %edi
    call kvm_guest_gate
    lidt kvm_guest_idt_register(%rip)

    # A page of each of 32 pieces of 2 MiB: a page fault each.
    movq $0, FAULTS
    movl $1, %ebx
1:  movq %rbx, %rdi
    shlq $21, %rdi
    movq %rbx, (%rdi)
    incl %ebx
    cmpl $32, %ebx
    jbe 1b
    cmpq $32, FAULTS
    jne kvm_guest_wrong
    say 'f'

    # 4 MiB of numbers, copied upwards, and copied downwards onto themselves as an image is that moves itself.
    xorl %eax, %eax
    cpuid
    movl $0x1000000, %edi
    movl $0x80000, %ecx
    movq $1, %rax
    movabsq $6364136223846793005, %rbx
2:  movq %rax, (%rdi)
    imulq %rbx, %rax
    incq %rax
    addq $8, %rdi
    decl %ecx
    jnz 2b
    movl $0x1000000, %esi
    movl $0x2000000, %edi
    movl $0x80000, %ecx
    rep movsq
    std
    movl $0x23ffff8, %esi
    movl $0x2400ff8, %edi
    movl $0x80000, %ecx
    rep movsq
    cld
    movl $0x2001000, %esi
    movl $0x80000, %ecx
    movq $1, %rax
3:  cmpq %rax, (%rsi)
    jne kvm_guest_wrong
    imulq %rbx, %rax
    incq %rax
    addq $8, %rsi
    decl %ecx
    jnz 3b
    say 'c'

    # The local APIC passes on what the interrupt controller says; its first input as vector 32, the timer at 100 Hz.
    movl $0xfee00000, %edi
    movl $0x1ff, 0xf0(%rdi)
    movl $0x700, 0x350(%rdi)
    movb $0x11, %al
    outb %al, $0x20
    movb $0x20, %al
    outb %al, $0x21
    movb $0x04, %al
    outb %al, $0x21
    movb $0x01, %al
    outb %al, $0x21
    movb $0xfe, %al
    outb %al, $0x21
    movb $0x34, %al
    outb %al, $0x43
    movb $0x9c, %al
    outb %al, $0x40
    movb $0x2e, %al
    outb %al, $0x40
    movq $0, TICKS
    sti
4:  hlt
    cmpq $3, TICKS
    jb 4b
    cli
    say 't'
5:  hlt
    jmp 5b

kvm_guest_wrong:
    say '!'
6:  hlt
    jmp 6b

    # Writes the gate at %edi that leads to %rax.
kvm_guest_gate:
    movw %ax, (%rdi)
    movw $24, 2(%rdi)
    movw $0x8e00, 4(%rdi)
    shrq $16, %rax
    movw %ax, 6(%rdi)
    shrq $16, %rax
    movq %rax, 8(%rdi)
    ret

    # Maps the 2 MiB around the address that was missing.
kvm_guest_fault:
    pushq %rax
    pushq %rcx
    movq %cr2, %rcx
    shrq $21, %rcx
    movq %rcx, %rax
    shlq $21, %rax
    orq $0x83, %rax
    movq %rax, 0x12000(,%rcx,8)
    incq FAULTS
    popq %rcx
    popq %rax
    addq $8, %rsp
    iretq

kvm_guest_tick:
    pushq %rax
    incq TICKS
    movb $0x20, %al
    outb %al, $0x20
    popq %rax
    iretq

    .balign 8
kvm_guest_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff
    .quad 0x00cf93000000ffff
    .quad 0x00af9b000000ffff
kvm_guest_gdt_register:
    .word 31
    .long kvm_guest_gdt - kvm_guest_start + 0xffff0000
kvm_guest_idt_register:
    .word 0xfff
    .quad 0x8000
