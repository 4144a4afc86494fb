package seckill.oracle;

import com.alibaba.csp.sentinel.AsyncEntry;
import com.alibaba.csp.sentinel.Constants;
import com.alibaba.csp.sentinel.Entry;
import com.alibaba.csp.sentinel.EntryType;
import com.alibaba.csp.sentinel.Env;
import com.alibaba.csp.sentinel.Tracer;
import com.alibaba.csp.sentinel.context.ContextUtil;
import com.alibaba.csp.sentinel.node.ClusterNode;
import com.alibaba.csp.sentinel.slots.block.AbstractRule;
import com.alibaba.csp.sentinel.slots.block.BlockException;
import com.alibaba.csp.sentinel.slots.block.authority.AuthorityRule;
import com.alibaba.csp.sentinel.slots.block.authority.AuthorityRuleManager;
import com.alibaba.csp.sentinel.slots.block.degrade.DegradeRule;
import com.alibaba.csp.sentinel.slots.block.degrade.DegradeRuleManager;
import com.alibaba.csp.sentinel.slots.block.flow.FlowRule;
import com.alibaba.csp.sentinel.slots.block.flow.FlowRuleManager;
import com.alibaba.csp.sentinel.slots.block.flow.controller.WarmUpController;
import com.alibaba.csp.sentinel.slots.block.flow.param.ParamFlowRule;
import com.alibaba.csp.sentinel.slots.block.flow.param.ParamFlowRuleManager;
import com.alibaba.csp.sentinel.slots.clusterbuilder.ClusterBuilderSlot;
import com.alibaba.csp.sentinel.slots.system.SystemBlockException;
import com.alibaba.csp.sentinel.slots.system.SystemRule;
import com.alibaba.csp.sentinel.slots.system.SystemRuleManager;
import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Plays schedules against the original engine.
 *
 * One schedule per line of standard input, one line of answers each on standard output; the words are
 * those of tests/differential/schedules.py.
 */
public final class Oracle {
    private static final Gson GSON = new Gson();
    private static final RuntimeException FAILURE = new RuntimeException("the call failed");

    private final Map<Integer, AsyncEntry> open = new HashMap<>();

    private Oracle() {
    }

    public static void main(String[] arguments) throws Exception {
        takeTheClock();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(new Oracle().play(JsonParser.parseString(line).getAsJsonObject()));
            out.flush();
        }
    }

    private static void takeTheClock() throws Exception {
        Map<String, String> names = Map.of(
            "java/lang/Thread", "seckill/oracle/VirtualTime",
            "java/lang/System", "seckill/oracle/VirtualTime",
            "java/util/concurrent/locks/LockSupport", "seckill/oracle/VirtualTime");
        for (String name : List.of("DefaultController", "ThrottlingController", "WarmUpRateLimiterController")) {
            ClassPatcher.load(WarmUpController.class, name, names);
        }
        ClassPatcher.load(ParamFlowRule.class, "ParamFlowChecker", Map.of(
            "java/lang/Thread", "seckill/oracle/VirtualTime",
            "java/util/concurrent/TimeUnit", "seckill/oracle/VirtualUnit",
            "Ljava/util/concurrent/TimeUnit;", "Lseckill/oracle/VirtualUnit;"));
    }

    private JsonObject play(JsonObject schedule) throws Exception {
        forgetEverything();
        VirtualTime.setMs(schedule.get("start_ms").getAsLong());
        JsonObject reply = new JsonObject();
        try {
            reply.add("order", load(schedule.getAsJsonObject("rules")));
        } catch (ArithmeticException e) {
            reply.addProperty("load_error", e.getClass().getSimpleName());
            return reply;
        }
        JsonArray answers = new JsonArray();
        for (JsonElement step : schedule.getAsJsonArray("steps")) {
            JsonElement answer = take(step.getAsJsonArray());
            if (answer != null) {
                answers.add(answer);
            }
        }
        for (AsyncEntry entry : open.values()) {
            entry.exit();
        }
        reply.add("answers", answers);
        return reply;
    }

    private JsonElement take(JsonArray step) throws Exception {
        switch (step.get(0).getAsString()) {
            case "advance":
                VirtualTime.advanceNs(step.get(1).getAsLong() * 1_000_000L);
                return null;
            case "enter":
                return enter(step.get(1).getAsInt(), step.get(2).getAsJsonObject());
            case "exit":
            case "fail":
                AsyncEntry entry = open.remove(step.get(1).getAsInt());
                if (entry != null) {
                    if (step.get(0).getAsString().equals("fail")) {
                        Tracer.traceEntry(FAILURE, entry);
                    }
                    entry.exit();
                }
                return null;
            case "load":
                return load(step.get(1).getAsJsonObject());
            default:
                return look(step.get(1).getAsString());
        }
    }

    private JsonElement enter(int id, JsonObject call) {
        JsonArray answer = new JsonArray();
        String context = call.get("context").getAsString();
        if (!context.isEmpty()) {
            ContextUtil.enter(context, call.get("origin").getAsString());
        }
        long beganNs = VirtualTime.nanoTime();
        try {
            AsyncEntry entry = Env.sph.asyncEntryWithType(
                call.get("resource").getAsString(),
                0,
                call.get("inbound").getAsBoolean() ? EntryType.IN : EntryType.OUT,
                call.get("count").getAsInt(),
                call.get("prioritized").getAsBoolean(),
                arguments(call.getAsJsonArray("args")));
            open.put(id, entry);
            answer.add("pass");
            answer.add(VirtualTime.nanoTime() - beganNs);
        } catch (BlockException e) {
            answer.add("block");
            answer.add(e.getClass().getSimpleName());
            answer.add(e instanceof SystemBlockException
                ? ((SystemBlockException) e).getLimitType()
                : String.valueOf(e.getRule().getId()));
            answer.add(VirtualTime.nanoTime() - beganNs);
        } finally {
            ContextUtil.exit();
        }
        return answer;
    }

    private static Object[] arguments(JsonArray typed) {
        List<Object> found = new ArrayList<>();
        for (JsonElement one : typed) {
            found.add(argument(one.getAsJsonArray()));
        }
        return found.toArray();
    }

    private static Object argument(JsonArray typed) {
        JsonElement value = typed.get(1);
        return switch (typed.get(0).getAsString()) {
            case "int" -> value.getAsInt();
            case "long" -> value.getAsLong();
            case "double" -> value.getAsDouble();
            case "boolean" -> value.getAsBoolean();
            case "list" -> {
                List<Object> inner = new ArrayList<>();
                for (JsonElement one : value.getAsJsonArray()) {
                    inner.add(argument(one.getAsJsonArray()));
                }
                yield inner;
            }
            case "null" -> null;
            default -> value.getAsString();
        };
    }

    /** The counters of a resource and of all inbound traffic, as whole numbers. */
    private static JsonElement look(String resource) {
        JsonArray answer = new JsonArray();
        ClusterNode node = ClusterBuilderSlot.getClusterNode(resource);
        if (node != null) {
            look(answer, node);
        }
        look(answer, Constants.ENTRY_NODE);
        return answer;
    }

    private static void look(JsonArray answer, com.alibaba.csp.sentinel.node.Node node) {
        answer.add((long) node.passQps());
        answer.add((long) node.blockQps());
        answer.add((long) node.successQps());
        answer.add((long) node.exceptionQps());
        answer.add(Math.round(node.avgRt() * 1000));
        answer.add((long) node.minRt());
        answer.add((long) node.maxSuccessQps());
        answer.add(node.curThreadNum());
        answer.add((long) node.previousPassQps());
        answer.add(node.totalPass());
        answer.add(node.blockRequest());
        answer.add(node.totalException());
        answer.add(node.totalSuccess());
    }

    /** Loads the rules that are given and answers in which order those of a resource are checked. */
    private static JsonObject load(JsonObject rules) {
        if (rules.has("flow")) {
            FlowRuleManager.loadRules(read(rules, "flow", FlowRule.class));
        }
        if (rules.has("degrade")) {
            DegradeRuleManager.loadRules(read(rules, "degrade", DegradeRule.class));
        }
        if (rules.has("system")) {
            SystemRuleManager.loadRules(read(rules, "system", SystemRule.class));
        }
        if (rules.has("authority")) {
            AuthorityRuleManager.loadRules(read(rules, "authority", AuthorityRule.class));
        }
        if (rules.has("param-flow")) {
            ParamFlowRuleManager.loadRules(read(rules, "param-flow", ParamFlowRule.class));
        }
        JsonObject order = new JsonObject();
        order.add("flow", ids(FlowRuleManager.getRules()));
        order.add("param-flow", ids(ParamFlowRuleManager.getRules()));
        return order;
    }

    private static <R> List<R> read(JsonObject rules, String kind, Class<R> type) {
        List<R> found = new ArrayList<>();
        for (JsonElement one : rules.getAsJsonArray(kind)) {
            found.add(GSON.fromJson(one, type));
        }
        return found;
    }

    private static JsonArray ids(List<? extends AbstractRule> rules) {
        JsonArray found = new JsonArray();
        for (AbstractRule rule : rules) {
            found.add(rule.getId());
        }
        return found;
    }

    /** The original is made of global state; each schedule begins without any. */
    private static void forgetEverything() throws Exception {
        FlowRuleManager.loadRules(new ArrayList<>());
        DegradeRuleManager.loadRules(new ArrayList<>());
        SystemRuleManager.loadRules(new ArrayList<>());
        AuthorityRuleManager.loadRules(new ArrayList<>());
        ParamFlowRuleManager.loadRules(new ArrayList<>());
        call(Class.forName("com.alibaba.csp.sentinel.CtSph"), "resetChainMap");
        call(ContextUtil.class, "resetContextMap");
        ClusterBuilderSlot.getClusterNodeMap().clear();
        Constants.ROOT.removeChildList();
    }

    private static void call(Class<?> type, String method) throws Exception {
        Method found = type.getDeclaredMethod(method);
        found.setAccessible(true);
        found.invoke(null);
    }
}
