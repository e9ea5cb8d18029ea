# What a launch agent becomes while its session runs (mpiboot/ssh_client/waiting_agent.py has what
# `as` makes of this, and why). Its arguments, each a text that libexec/agent has made:
#   1, 2 the agent's path and its host, by which it is known   3 what a signal has it write to file 8
#   4, status, 6 (5 after a signal)                        what it writes to file 7 at its end
#   7, 8 a file, and what is added to it where file 9 ends without a status   9 empty
# It ends with the status that it reads from file 9, as digits and a newline; without one, 255.
        .intel_syntax noprefix
start:  lea rbp, [rsp + 24]             # argv + 2; argv[i] is [rbp + 8 * (i - 2)]
        mov r12, [rbp + 32]             # how a line ends: argv[6], argv[5] after a signal
        mov r13, [rbp + 40]
        sub rsp, 192
        mov eax, 14                     # rt_sigprocmask(SIG_BLOCK, signals, 0, 8)
        xor edi, edi
        lea rsi, [rip + signals]
        xor edx, edx
        mov r10d, 8
        syscall
        mov eax, 289                    # signalfd4(-1, signals, 8, 0)
        or rdi, -1
        lea rsi, [rip + signals]
        mov edx, 8
        xor r10d, r10d
        syscall
        mov r15d, eax
        mov edi, 254
        test eax, eax
        js leave
        mov eax, 28                     # madvise(the environment, 8 MiB, MADV_DONTNEED)
        mov rdi, [rbp + 56]
        add rdi, 4096
        and rdi, -4096
        mov esi, 0x800000
        mov edx, 4
        syscall
        mov dword ptr [rsp], 9
        mov dword ptr [rsp + 4], 1      # POLLIN
        mov dword ptr [rsp + 8], r15d
        mov dword ptr [rsp + 12], 1
wait:   mov eax, 271                    # ppoll(files, 2, 0, 0, 8)
        mov rdi, rsp
        mov esi, 2
        xor edx, edx
        xor r10d, r10d
        mov r8d, 8
        syscall
        test eax, eax
        js wait
        cmp word ptr [rsp + 6], 0
        jne told
        xor eax, eax                    # read(signalfd, buffer, 128)
        mov edi, r15d
        lea rsi, [rsp + 64]
        mov edx, 128
        syscall
        mov r12, [rbp + 24]
        mov r13, [rbp + 32]
        mov eax, 1                      # write(8, argv[3])
        mov edi, 8
        mov rsi, [rbp + 8]
        mov rdx, [rbp + 16]
        call size
        syscall
        jmp wait
told:   xor eax, eax                    # read(9, buffer, 128)
        mov edi, 9
        lea rsi, [rsp + 64]
        mov edx, 128
        syscall
        lea rbx, [rsp + 64]
        mov r14d, eax
        cmp eax, 1
        jg tell
        lea rbx, [rip + failed]         # nobody will tell: 255
        mov r14d, 4
        mov eax, 2                      # open(argv[7], O_WRONLY | O_CREAT | O_APPEND, 0600)
        mov rdi, [rbp + 40]
        mov esi, 0x441
        mov edx, 0x180
        syscall
        mov edi, eax                    # write(that, argv[8])
        mov eax, 1
        mov rsi, [rbp + 48]
        mov rdx, [rbp + 56]
        call size
        syscall
tell:   mov rsi, [rbp + 16]             # writev(7, argv[4] + status + the line's end)
        mov rdx, [rbp + 24]
        call size
        mov [rsp + 16], rsi
        mov [rsp + 24], rdx
        dec r14d
        mov [rsp + 32], rbx
        mov [rsp + 40], r14
        mov rsi, r12
        mov rdx, r13
        call size
        mov [rsp + 48], rsi
        mov [rsp + 56], rdx
        mov eax, 20
        mov edi, 7
        lea rsi, [rsp + 16]
        mov edx, 3
        syscall
        xor edi, edi
digit:  movzx ecx, byte ptr [rbx]
        sub ecx, 48
        cmp ecx, 9
        ja leave
        imul edi, edi, 10
        add edi, ecx
        inc rbx
        jmp digit
leave:  mov eax, 231                    # exit_group(status)
        syscall
size:   sub rdx, rsi                    # a word is as long as it is to the next one
        dec rdx
        ret
signals: .quad 0x4a07                   # HUP, INT, QUIT, USR1, USR2, TERM
failed: .ascii "255\n"
