// What a launch agent becomes while its session runs (mpiboot/ssh_client/waiting_agent.py has what
// `as` makes of this, and why). Its arguments, each a text that libexec/agent has made:
//   1, 2 the agent's path and its host, by which it is known   3 what a signal has it write to file 8
//   4, status, 6 (5 after a signal)                        what it writes to file 7 at its end
//   7, 8 a file, and what is added to it where file 9 ends without a status   9 empty
// It ends with the status that it reads from file 9, as digits and a newline; without one, 255.
start:  add x20, sp, 24                 // argv + 2
        ldp x21, x22, [x20, 32]         // how a line ends: argv[6], argv[5] after a signal
        sub sp, sp, 192
        mov x8, 135                     // rt_sigprocmask(SIG_BLOCK, signals, 0, 8)
        mov x0, 0
        adr x1, signals
        mov x2, 0
        mov x3, 8
        svc 0
        mov x8, 74                      // signalfd4(-1, signals, 8, 0)
        mov x0, -1
        adr x1, signals
        mov x2, 8
        mov x3, 0
        svc 0
        mov x23, x0
        mov w24, 254
        tbnz x0, 63, leave
        mov x8, 233                     // madvise(the environment, 8 MiB, MADV_DONTNEED)
        ldr x0, [x20, 56]
        add x0, x0, 4096
        and x0, x0, -4096
        mov x1, 0x800000
        mov x2, 4
        svc 0
        mov w9, 9
        mov w10, 1                      // POLLIN
        stp w9, w10, [sp]
        stp w23, w10, [sp, 8]
wait:   mov x8, 73                      // ppoll(files, 2, 0, 0, 8)
        mov x0, sp
        mov x1, 2
        mov x2, 0
        mov x3, 0
        mov x4, 8
        svc 0
        tbnz x0, 63, wait
        ldrh w9, [sp, 6]
        cbnz w9, told
        mov x8, 63                      // read(signalfd, buffer, 128)
        mov x0, x23
        add x1, sp, 64
        mov x2, 128
        svc 0
        ldp x21, x22, [x20, 24]
        mov x8, 64                      // write(8, argv[3])
        mov x0, 8
        ldp x1, x2, [x20, 8]
        bl size
        svc 0
        b wait
told:   mov x8, 63                      // read(9, buffer, 128)
        mov x0, 9
        add x1, sp, 64
        mov x2, 128
        svc 0
        add x25, sp, 64
        mov x26, x0
        cmp x0, 1
        b.gt tell
        adr x25, failed                 // nobody will tell: 255
        mov x26, 4
        mov x8, 56                      // openat(AT_FDCWD, argv[7], O_WRONLY | O_CREAT | O_APPEND, 0600)
        mov x0, -100
        ldr x1, [x20, 40]
        mov x2, 0x441
        mov x3, 0x180
        svc 0
        mov x8, 64                      // write(that, argv[8])
        ldp x1, x2, [x20, 48]
        bl size
        svc 0
tell:   ldp x1, x2, [x20, 16]           // writev(7, argv[4] + status + the line's end)
        bl size
        stp x1, x2, [sp, 16]
        sub x26, x26, 1
        stp x25, x26, [sp, 32]
        mov x1, x21
        mov x2, x22
        bl size
        stp x1, x2, [sp, 48]
        mov x8, 66
        mov x0, 7
        add x1, sp, 16
        mov x2, 3
        svc 0
        mov w24, 0
        mov w10, 10
digit:  ldrb w9, [x25], 1
        sub w9, w9, 48
        cmp w9, 9
        b.hi leave
        madd w24, w24, w10, w9
        b digit
leave:  mov x8, 94                      // exit_group(status)
        mov w0, w24
        svc 0
size:   sub x2, x2, x1                  // a word is as long as it is to the next one
        sub x2, x2, 1
        ret
        .balign 8
signals: .quad 0x4a07                   // HUP, INT, QUIT, USR1, USR2, TERM
failed: .ascii "255\n"
