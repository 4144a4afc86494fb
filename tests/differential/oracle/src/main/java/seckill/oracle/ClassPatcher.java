package seckill.oracle;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.invoke.MethodHandles;
import java.util.Map;

/**
 * Loads a class of the original with some of the class names in it replaced by others.
 *
 * The original's controllers sleep by Thread, LockSupport and TimeUnit, and read System.nanoTime. A
 * class file names what it calls in its constant pool, by text; replacing the text there redirects the
 * calls to the virtual clock and leaves the rest as it is, byte for byte.
 */
final class ClassPatcher {
    private static final int UTF8 = 1;
    private static final int LONG = 5;
    private static final int DOUBLE = 6;

    private ClassPatcher() {
    }

    /**
     * @param anchor a class of the same package and loader, which is loaded already or may be
     * @param name   simple name of the class to load
     * @param texts  what to replace by what, whole constants only
     */
    static void load(Class<?> anchor, String name, Map<String, String> texts) throws Exception {
        String path = "/" + anchor.getPackageName().replace('.', '/') + "/" + name + ".class";
        try (InputStream original = anchor.getResourceAsStream(path)) {
            byte[] patched = patch(original.readAllBytes(), texts);
            MethodHandles.privateLookupIn(anchor, MethodHandles.lookup()).defineClass(patched);
        }
    }

    private static byte[] patch(byte[] classFile, Map<String, String> texts) throws IOException {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(classFile));
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeInt(in.readInt());
        out.writeInt(in.readInt());
        int constants = in.readUnsignedShort();
        out.writeShort(constants);
        for (int i = 1; i < constants; i++) {
            int tag = in.readUnsignedByte();
            out.writeByte(tag);
            if (tag == UTF8) {
                String text = in.readUTF();
                out.writeUTF(texts.getOrDefault(text, text));
            } else {
                out.write(in.readNBytes(sizeOf(tag)));
                if (tag == LONG || tag == DOUBLE) {
                    i++;
                }
            }
        }
        out.write(in.readAllBytes());
        return bytes.toByteArray();
    }

    private static int sizeOf(int tag) {
        return switch (tag) {
            case LONG, DOUBLE -> 8;
            case 7, 8, 16, 19, 20 -> 2;
            case 15 -> 3;
            default -> 4;
        };
    }
}
