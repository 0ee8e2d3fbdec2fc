import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** Runs one node of OpenSearch on the loopback, without security: `Server FOLDER PORT`. */
public class Server {
    static final class SingleNode extends Node {
        SingleNode(Settings settings) {
            super(
                InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "tests"),
                List.of(Netty4Plugin.class),
                false);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Settings settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("http.port", arguments[1])
            .put("transport.port", 0)
            .put("http.max_content_length", "20mb")
            .put("network.host", "127.0.0.1")
            .put("transport.type", "netty4")
            .put("http.type", "netty4")
            .put("discovery.type", "single-node")
            .put("node.store.allow_mmap", false)
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        new SingleNode(settings).start();
        Thread.currentThread().join();
    }
}
