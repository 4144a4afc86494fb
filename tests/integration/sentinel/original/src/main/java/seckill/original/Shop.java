package seckill.original;

import com.alibaba.csp.sentinel.Entry;
import com.alibaba.csp.sentinel.EntryType;
import com.alibaba.csp.sentinel.ResourceTypeConstants;
import com.alibaba.csp.sentinel.SphU;
import com.alibaba.csp.sentinel.context.ContextUtil;
import com.alibaba.csp.sentinel.init.InitExecutor;
import com.alibaba.csp.sentinel.slots.block.BlockException;
import com.alibaba.csp.sentinel.transport.config.TransportConfig;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * A service that uses the original client. It prints its command port once that is open; each line it
 * reads is a number of calls to make, answered by the number of calls that were let in.
 */
public final class Shop {
    private static final int PORT_TRIES = 1_000;
    private static final int PORT_PAUSE_MS = 10;

    private Shop() {
    }

    public static void main(String[] arguments) throws Exception {
        InitExecutor.doInit();
        for (int tries = 0; TransportConfig.getRuntimePort() < 0 && tries < PORT_TRIES; tries++) {
            Thread.sleep(PORT_PAUSE_MS);
        }
        say(TransportConfig.getRuntimePort());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            say(call(Integer.parseInt(line.trim())));
        }
        System.exit(0);
    }

    /** The original prints lines of its own; ours begin with a mark. */
    private static void say(int number) {
        System.out.println("> " + number);
    }

    /** Calls from one caller into a shop, each with a store behind it. */
    private static int call(int count) {
        int passed = 0;
        ContextUtil.enter("shop", "app-1");
        for (int index = 0; index < count; index++) {
            try (Entry buy = SphU.entry("buy", ResourceTypeConstants.COMMON_WEB, EntryType.IN)) {
                try (Entry stock = SphU.entry("stock", EntryType.OUT)) {
                    passed++;
                }
            } catch (BlockException block) {
                // The number that is left says how many.
            }
        }
        ContextUtil.exit();
        return passed;
    }
}
