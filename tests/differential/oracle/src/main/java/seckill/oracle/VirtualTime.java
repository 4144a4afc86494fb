package seckill.oracle;

/** The one clock of the oracle. It stands still until it is moved, or until somebody sleeps on it. */
public final class VirtualTime {
    private static final long NANOS_PER_MS = 1_000_000L;

    private static long nowNs;

    private VirtualTime() {
    }

    public static long nowMs() {
        return nowNs / NANOS_PER_MS;
    }

    /** Called in place of System.nanoTime: see ClassPatcher. */
    public static long nanoTime() {
        return nowNs;
    }

    public static void setMs(long ms) {
        nowNs = ms * NANOS_PER_MS;
    }

    public static void advanceNs(long spanNs) {
        nowNs += spanNs;
    }

    /** Called in place of Thread.sleep. */
    public static void sleep(long ms) {
        nowNs += ms * NANOS_PER_MS;
    }

    /** Called in place of LockSupport.parkNanos. */
    public static void parkNanos(long ns) {
        nowNs += ns;
    }

    /** Called in place of Thread.yield, which only ever loses a race; there is one thread here. */
    public static void yield() {
        throw new IllegalStateException("a race in a single thread");
    }
}
