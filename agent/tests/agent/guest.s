    .pushsection .rodata.guest, "a"
    .global sandpiper_test_guest
    .global sandpiper_test_guest_end
    # Queue n: descriptors here, available ring 4 KiB further on, used ring another 4 KiB.
    .set RECEIVE, 0x400000
    .set TRANSMIT, 0x403000
    .set EVENTS, 0x406000
    .set REQUESTS, 0x409000
    .set AVAILABLE, 0x1000
    .set USED, 0x2000
    .set RECEIVED, 0x500000
    .set EVENT, 0x510000
    .set BLOCK_DATA, 0x520000
    .set REFUSED, 0x530000
sandpiper_test_guest:
    # The 2 MiB of the virtio windows, 0xd0000000, mapped to themselves; the boot tables map the first GiB only.
    mov dword ptr [0xa018], 0xc003
    mov dword ptr [0xc400], 0xd0000083
    mov dword ptr [0xc404], 0
    xor r12d, r12d  # packets received
    xor r13d, r13d  # events received
    xor r14d, r14d  # packets sent
    xor r15d, r15d  # how often the guest was told who it is
    xor ebp, ebp  # blocks written
    # The disk: a request is a header, a block and a status.
    mov ecx, 2
    call .Lfind
    mov r10, rbx
    call .Lhandshake
    xor ecx, ecx
    mov eax, offset REQUESTS
    call .Lqueue
    mov dword ptr [rbx + 0x70], 0xf
    lea rax, [rip + .Lrequest]
    mov edi, offset REQUESTS
    mov [rdi], rax
    mov dword ptr [rdi + 8], 16
    mov dword ptr [rdi + 12], 0x10001
    mov dword ptr [rdi + 16], offset BLOCK_DATA
    mov dword ptr [rdi + 24], 4096
    mov dword ptr [rdi + 28], 0x20001
    mov dword ptr [rdi + 32], offset BLOCK_DATA + 4096
    mov dword ptr [rdi + 40], 1
    mov dword ptr [rdi + 44], 2
    # The vsock device: eight receive buffers of 4 KiB, one for events, and a descriptor for each packet that is ever sent.
    mov ecx, 19
    call .Lfind
    call .Lhandshake
    xor ecx, ecx
    mov eax, offset RECEIVE
    call .Lqueue
    mov ecx, 1
    mov eax, offset TRANSMIT
    call .Lqueue
    mov ecx, 2
    mov eax, offset EVENTS
    call .Lqueue
    mov edi, offset RECEIVE
    mov eax, offset RECEIVED
    xor ecx, ecx
2:
    mov [rdi], rax
    mov dword ptr [rdi + 8], 4096
    mov dword ptr [rdi + 12], 2
    mov word ptr [RECEIVE + AVAILABLE + 4 + rcx * 2], cx
    add rdi, 16
    add rax, 4096
    inc ecx
    cmp ecx, 8
    jne 2b
    mov word ptr [RECEIVE + AVAILABLE + 2], 8
    mov dword ptr [EVENTS], offset EVENT
    mov dword ptr [EVENTS + 8], 8
    mov dword ptr [EVENTS + 12], 2
    mov word ptr [EVENTS + AVAILABLE + 2], 1
    mov edi, offset TRANSMIT
    lea rsi, [rip + .Lpackets]
    mov ecx, 9
3:
    mov eax, [rsi]  # each packet is preceded by its length
    add rsi, 4
    mov [rdi], rsi
    mov [rdi + 8], eax
    add rsi, rax
    add rdi, 16
    dec ecx
    jnz 3b
    mov dword ptr [rbx + 0x70], 0xf
    mov dword ptr [rbx + 0x50], 0
    mov dword ptr [rbx + 0x50], 2
    # Connect, then hear.
.Lconnect:
    xor edi, edi
    call .Lsend
.Lhear:
    pause
    cmp r13w, word ptr [EVENTS + USED + 2]
    jne .Lreset
    cmp r12w, word ptr [RECEIVE + USED + 2]
    je .Lhear
    # A packet: its buffer is number r8d, at r9.
    mov eax, r12d
    and eax, 15
    mov r8d, [RECEIVE + USED + 4 + rax * 8]
    mov r9d, r8d
    shl r9d, 12
    add r9d, offset RECEIVED
    inc r12d
    movzx r11d, word ptr [r9 + 30]
    cmp r11d, 5
    jne .Lgive_back
    # Data: lines whose tenth and eleventh byte tell them apart.
    mov rsi, r9
    add rsi, 44
    mov eax, [r9 + 24]
    lea rdx, [rsi + rax]
.Lline:
    cmp rsi, rdx
    jae .Lgive_back
    mov al, [rsi + 9]
    mov edi, 8
    cmp word ptr [rsi + 9], 0x6f66  # "fo"
    je .Lreply
    mov edi, 2
    cmp al, 'f'
    je .Lreply
    mov edi, 6
    cmp al, 'u'
    je .Lreply
    mov edi, 7
    cmp al, 'm'
    je .Lreply
    mov edi, 3
    cmp word ptr [rsi + 9], 0x6874  # "th"
    je .Lreply
    cmp al, 'i'
    jne .Lskip
    call .Ltold
    mov edi, 5
    call .Lsend
    mov edi, 4
.Lreply:
    call .Lsend
.Lskip:
    inc rsi
    cmp byte ptr [rsi - 1], 10
    je .Lline
    cmp rsi, rdx
    jb .Lskip
    # The buffer goes back.
.Lgive_back:
    lea eax, [r12 + 7]
    and eax, 15
    mov word ptr [RECEIVE + AVAILABLE + 4 + rax * 2], r8w
    lea eax, [r12 + 8]
    mov word ptr [RECEIVE + AVAILABLE + 2], ax
    mov dword ptr [rbx + 0x50], 0
    cmp r11d, 3  # refused, or reset: after a while again
    je .Lrefused
    cmp r11d, 4  # the agent is gone: agreed, and another connection
    je .Lgone
    cmp r11d, 2
    jne .Lhear
    mov dword ptr [REFUSED], 0
    jmp .Lhear
.Lgone:
    mov edi, 1
    call .Lsend
    # A tenth of a second between attempts; after a few minutes of them, there is no agent any more.
.Lrefused:
    inc dword ptr [REFUSED]
    cmp dword ptr [REFUSED], 3000
    jae .Lpower_off
    rdtsc
    mov ecx, eax
.Lwait:
    pause
    rdtsc
    sub eax, ecx
    cmp eax, 0x10000000
    jb .Lwait
    jmp .Lconnect
    # By ACPI's sleep control register.
.Lpower_off:
    mov dx, 0x600
    mov al, 0x34
    out dx, al
    jmp .Lpower_off
    # An event: all connections are gone. A buffer for the next one says that this was understood.
.Lreset:
    inc r13d
    mov eax, r13d
    and eax, 15
    mov word ptr [EVENTS + AVAILABLE + 4 + rax * 2], 0
    lea eax, [r13 + 1]
    mov word ptr [EVENTS + AVAILABLE + 2], ax
    mov dword ptr [rbx + 0x50], 2
    jmp .Lconnect
    # rbx = the window of the first device of kind ecx.
.Lfind:
    mov ebx, 0xd0000000
2:
    cmp [rbx + 8], ecx
    je 3f
    add rbx, 0x1000
    jmp 2b
3:
    ret
    # The handshake of device rbx (virtio 1.2, section 4.2.3), accepting nothing but version 1.
.Lhandshake:
    mov dword ptr [rbx + 0x70], 1
    mov dword ptr [rbx + 0x70], 3
    mov dword ptr [rbx + 0x24], 1
    mov dword ptr [rbx + 0x20], 1
    mov dword ptr [rbx + 0x70], 0xb
    ret
    # Queue ecx of device rbx is at eax.
.Lqueue:
    mov [rbx + 0x30], ecx
    mov dword ptr [rbx + 0x38], 16
    mov [rbx + 0x80], eax
    add eax, 0x1000
    mov [rbx + 0x90], eax
    add eax, 0x1000
    mov [rbx + 0xa0], eax
    mov dword ptr [rbx + 0x44], 1
    ret
    # Sends packet edi.
.Lsend:
    mov eax, r14d
    and eax, 15
    mov word ptr [TRANSMIT + AVAILABLE + 4 + rax * 2], di
    inc r14d
    mov word ptr [TRANSMIT + AVAILABLE + 2], r14w
    mov dword ptr [rbx + 0x50], 1
    ret
    # The guest was told who it is: counts, and writes the count to the disk.
.Ltold:
    inc r15d
    lea eax, [r15 + '0']
    mov [rip + .Ldigit], al
    mov dword ptr [BLOCK_DATA], 0x646c6f74  # "told"
    mov byte ptr [BLOCK_DATA + 4], ' '
    mov [BLOCK_DATA + 5], al
    lea eax, [r15 + 16]
    shl eax, 3
    mov [rip + .Lsector], eax
    inc ebp
    lea eax, [rbp - 1]
    and eax, 15
    mov word ptr [REQUESTS + AVAILABLE + 4 + rax * 2], 0
    mov word ptr [REQUESTS + AVAILABLE + 2], bp
    mov dword ptr [r10 + 0x50], 0
2:
    cmp bp, word ptr [REQUESTS + USED + 2]
    jne 2b
    ret
    # Packets, each: length; addresses, ports (of the guest's processes only root opens the link), length of the data, type
    # and operation, flags, credit; data (virtio 1.2, section 5.10.6).
    .macro packet operation, length
    .long 44 + \length
    .quad 3, 2
    .long 1023, 1024, \length
    .word 1, \operation
    .long 0, 0x10000, 0
    .endm
.Lpackets:
    packet 1, 0  # 0: connect
    packet 3, 0  # 1: reset
    packet 5, (.Lfrozen_end - .Lfrozen)
.Lfrozen: .ascii "{\"type\":\"frozen\"}\n"
.Lfrozen_end:
    packet 5, (.Lthawed_end - .Lthawed)
.Lthawed: .ascii "{\"type\":\"thawed\"}\n"
.Lthawed_end:
    packet 5, (.Lready_end - .Lready)
.Lready: .ascii "{\"type\":\"ready\",\"init_version\":\"test\"}\n"
.Lready_end:
    packet 5, (.Llog_end - .Llog)
.Llog: .ascii "{\"type\":\"log\",\"level\":\"info\",\"message\":\"told "
.Ldigit: .ascii "0\"}\n"
.Llog_end:
    packet 5, (.Lunmounted_end - .Lunmounted)
.Lunmounted: .ascii "{\"type\":\"unmounted\",\"held\":[]}\n"
.Lunmounted_end:
    packet 5, (.Lmounted_end - .Lmounted)
.Lmounted: .ascii "{\"type\":\"mounted\"}\n"
.Lmounted_end:
    packet 5, (.Lformatted_end - .Lformatted)
.Lformatted: .ascii "{\"type\":\"formatted\"}\n"
.Lformatted_end:
    .purgem packet
    # The header of a disk request: a write, to the sector that follows.
.Lrequest: .long 1, 0
.Lsector: .quad 0
sandpiper_test_guest_end:
    .popsection
