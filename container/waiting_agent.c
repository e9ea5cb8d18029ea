/* What a launch agent's shell becomes while its host's session runs (mpiboot/libexec/agent).
 *
 *   waiting_agent AGENT HOST ERRORS
 *
 * A shell that waits has 140 KiB of its own, which with a thousand hosts is most of a launcher; this
 * has 20, linked with musl and without shared libraries. It does what the shell would: it waits for
 * the client's word, passes a signal on as the wish to end the session, tells the parent how the
 * session ended, and ends with its status. AGENT is the agent's path, by which it is known in the
 * process table (supervisor/watch.py). ERRORS is the file that gets a line where the client is gone.
 */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* The FIFOs, as the shell has opened them; ssh/client.py says what goes there. */
enum { EVENTS = 7, REQUESTS = 8, ANSWERS = 9 };
/* As ssh ends where its connection is lost. */
enum { FAILED = 255 };

static const int taken[] = {SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2};

/* One write a line: where many write to a FIFO, longer ones and parts may be mixed, pipe(7). */
static void tell(int file, const char *line)
{
    (void)write(file, line, strlen(line));
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    sigset_t signals;
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        sigaddset(&signals, taken[i]);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int arrived = signalfd(-1, &signals, 0);
    if (arrived < 0)
        return 2;

    struct pollfd files[] = {{.fd = arrived, .events = POLLIN}, {.fd = ANSWERS, .events = POLLIN}};
    const char *signalled = "";
    char line[PIPE_BUF];
    while (!files[1].revents) {
        if (poll(files, 2, -1) < 0 || !files[0].revents)
            continue;
        struct signalfd_siginfo one;
        if (read(arrived, &one, sizeof one) != sizeof one)
            continue;
        signalled = " TERM";
        snprintf(line, sizeof line, "end %s %d\n", argv[2], getpid());
        tell(REQUESTS, line);
    }

    char said[8] = "";
    int status = FAILED;
    if (read(ANSWERS, said, sizeof said - 1) > 0) {
        status = atoi(said);
    } else {
        int errors = open(argv[3], O_WRONLY | O_CREAT | O_APPEND, 0600);
        tell(errors, "mpiboot's SSH client has ended\n");
    }
    snprintf(line, sizeof line, "ended %s %d %d%s\n", argv[2], status, getpid(), signalled);
    tell(EVENTS, line);
    return status;
}
