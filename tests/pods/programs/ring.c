/* The job that the tests run: says which rank runs where, then ends in the way it is told to.
 *
 *   ring [--bytes MB] [--sleep S] [--file PATH] [--ignore-term] [--no-finalize]
 *        [--save S] [--after S] [--before S] [--apart S] [--read PATH]
 *        [--rank R] [--exit CODE | --abort CODE | --segv | --kill]
 *
 * Each rank prints one line, "rank R of N on HOST", after an MPI_Allreduce over all of them.
 * --bytes moves that many MB from each rank to the next one; --file appends a line per second;
 * the last four ways to end hold for rank R (the last one unless told); --no-finalize for all.
 * With --save a rank (R alone, where told) that gets SIGTERM or SIGUSR1 needs S seconds to write
 * /ckpt/saved-RANK, notes each further signal in it, and ends its stay. With --after rank R stays
 * for S seconds after MPI_Finalize, with --before before MPI_Init. With --apart and --read it stays
 * away for S seconds, or reads PATH to its end, while the others are in MPI_Barrier already.
 */
#include <getopt.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t told, times;

static void take(int number)
{
    told = number;
    times++;
}

static void die(const char *why)
{
    fprintf(stderr, "ring: %s\n", why);
    exit(2);
}

static void pass_on(int rank, int size, long megabytes)
{
    const int chunk = 1 << 20;
    char *out = malloc(chunk), *in = malloc(chunk);
    if (!out || !in)
        die("out of memory");
    memset(out, rank, chunk);
    for (long i = 0; i < megabytes; i++)
        MPI_Sendrecv(out, chunk, MPI_CHAR, (rank + 1) % size, 0,
                     in, chunk, MPI_CHAR, (rank + size - 1) % size, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    free(out);
    free(in);
}

static void stay(double seconds, const char *path, int rank, const char *host)
{
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        double left = seconds - (now.tv_sec - start.tv_sec) - (now.tv_nsec - start.tv_nsec) / 1e9;
        if (left <= 0 || told)
            return;
        if (path) {
            FILE *file = fopen(path, "a");
            if (!file)
                die("can't write the file");
            fprintf(file, "rank %d on %s at %ld\n", rank, host, (long)time(NULL));
            fclose(file);
        }
        usleep(left < 1 ? left * 1e6 : 1e6);
    }
}

static void read_all(const char *path)
{
    char buffer[64];
    FILE *file = fopen(path, "r");
    if (!file)
        die("can't read the file");
    while (fread(buffer, 1, sizeof buffer, file) > 0)
        ;
    fclose(file);
}

static void save(double seconds, int rank)
{
    char path[64];
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        usleep(50000);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
    snprintf(path, sizeof path, "/ckpt/saved-%d", rank);
    FILE *file = fopen(path, "w");
    if (!file)
        die("can't write what is to be saved");
    fprintf(file, "signal %d, %s\n", (int)told, times > 1 ? "again" : "once");
    fclose(file);
}

int main(int argc, char **argv)
{
    long megabytes = 0;
    double seconds = 0, saving = -1, after = 0, before = 0, apart = 0;
    int who = -1, code = 0, finalize = 1, option;
    char end = 0, host[256] = "";
    const char *path = NULL, *input = NULL, *number;
    static const struct option options[] = {
        {"bytes", required_argument, NULL, 'b'}, {"sleep", required_argument, NULL, 's'},
        {"file", required_argument, NULL, 'f'},  {"ignore-term", no_argument, NULL, 'i'},
        {"no-finalize", no_argument, NULL, 'n'}, {"rank", required_argument, NULL, 'r'},
        {"exit", required_argument, NULL, 'e'},  {"abort", required_argument, NULL, 'a'},
        {"segv", no_argument, NULL, 'v'},        {"kill", no_argument, NULL, 'k'},
        {"save", required_argument, NULL, 'w'},  {"after", required_argument, NULL, 'l'},
        {"before", required_argument, NULL, 'B'}, {"apart", required_argument, NULL, 'A'},
        {"read", required_argument, NULL, 'R'},
        {NULL, 0, NULL, 0}};

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'b': megabytes = atol(optarg); break;
        case 's': seconds = atof(optarg); break;
        case 'f': path = optarg; break;
        case 'i': signal(SIGTERM, SIG_IGN); break;
        case 'n': finalize = 0; break;
        case 'w': saving = atof(optarg); break;
        case 'l': after = atof(optarg); break;
        case 'B': before = atof(optarg); break;
        case 'A': apart = atof(optarg); break;
        case 'R': input = optarg; break;
        case 'r': who = atoi(optarg); break;
        case 'e': case 'a': code = atoi(optarg); end = option; break;
        case 'v': case 'k': end = option; break;
        default: return 2;
        }
    }

    int rank, size, one = 1, sum = 0;
    number = getenv("OMPI_COMM_WORLD_RANK");
    number = number ? number : getenv("PMI_RANK");
    if (number && atoi(number) == who)
        stay(before, NULL, who, host);
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    gethostname(host, sizeof host - 1);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (sum != size)
        die("the sum over all ranks is wrong");
    if (saving >= 0 && (who < 0 || who == rank)) {
        signal(SIGTERM, take);
        signal(SIGUSR1, take);
    }
    printf("rank %d of %d on %s\n", rank, size, host);
    fflush(stdout);

    if (rank == who) {
        stay(apart, NULL, rank, host);
        if (input)
            read_all(input);
    }
    if (apart > 0 || input)
        MPI_Barrier(MPI_COMM_WORLD);
    pass_on(rank, size, megabytes);
    stay(seconds, path, rank, host);
    if (told)
        save(saving, rank);

    if (rank == (who < 0 ? size - 1 : who)) {
        switch (end) {
        case 'a': MPI_Abort(MPI_COMM_WORLD, code); break;
        case 'v': raise(SIGSEGV); break;
        case 'k': raise(SIGKILL); break;
        case 'e':
            if (finalize)
                MPI_Finalize();
            exit(code);
        }
    }
    if (finalize)
        MPI_Finalize();
    if (rank == who)
        stay(after, path, rank, host);
    return 0;
}
