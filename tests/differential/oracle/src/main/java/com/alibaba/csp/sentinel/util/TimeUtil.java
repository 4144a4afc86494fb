package com.alibaba.csp.sentinel.util;

import seckill.oracle.VirtualTime;

/**
 * Stands before the original's class of this name on the class path, so that every reading of the clock
 * in the engine is ours.
 */
public final class TimeUtil {
    private TimeUtil() {
    }

    public static long currentTimeMillis() {
        return VirtualTime.nowMs();
    }
}
