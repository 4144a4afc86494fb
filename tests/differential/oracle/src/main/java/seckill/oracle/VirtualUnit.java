package seckill.oracle;

/** Stands in for java.util.concurrent.TimeUnit where the original sleeps by it. */
public final class VirtualUnit {
    public static final VirtualUnit MILLISECONDS = new VirtualUnit();

    private VirtualUnit() {
    }

    public void sleep(long ms) {
        VirtualTime.sleep(ms);
    }
}
