import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.StatefulSinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.connector.base.sink.AsyncSinkBase;
import org.apache.flink.connector.base.sink.writer.AsyncSinkWriter;
import org.apache.flink.connector.base.sink.writer.AsyncSinkWriterStateSerializer;
import org.apache.flink.connector.base.sink.writer.BufferedRequestState;
import org.apache.flink.connector.base.sink.writer.ResultHandler;
import org.apache.flink.connector.base.sink.writer.config.AsyncSinkWriterConfiguration;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Posts rows to a URL with Flink's AsyncSinkBase, in a local cluster with one task. */
public final class Sender {
    private static final String ROW =
            "{\"id\": %d, \"name\": \"row %d\", \"amount\": %f, \"tags\": [\"a\", \"b\"]}";

    /** Arguments: URL, rows, maxBatchSize, maxInFlightRequests, maxBufferedRequests. */
    public static void main(String[] args) throws Exception {
        long rows = Long.parseLong(args[1]);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(1);
        env.fromSequence(0, rows - 1)
                .map(id -> String.format(ROW, id % 1000, id % 1000, (id % 1000) / 7.0))
                .returns(Types.STRING)
                .sinkTo(new HttpSink(args[0], number(args[2]), number(args[3]), number(args[4])));
        env.execute();
    }

    private static int number(String text) {
        return Integer.parseInt(text);
    }

    static final class HttpSink extends AsyncSinkBase<String, String> {
        private final String url;

        HttpSink(String url, int batch, int inFlight, int buffered) {
            super((row, context) -> row, batch, inFlight, buffered, 4 << 20, 1000, 1 << 20);
            this.url = url;
        }

        @Override
        public StatefulSinkWriter<String, BufferedRequestState<String>> createWriter(WriterInitContext context) {
            return restoreWriter(context, List.of());
        }

        @Override
        public StatefulSinkWriter<String, BufferedRequestState<String>> restoreWriter(
                WriterInitContext context, Collection<BufferedRequestState<String>> state) {
            AsyncSinkWriterConfiguration configuration =
                    AsyncSinkWriterConfiguration.builder()
                            .setMaxBatchSize(getMaxBatchSize())
                            .setMaxBatchSizeInBytes(getMaxBatchSizeInBytes())
                            .setMaxInFlightRequests(getMaxInFlightRequests())
                            .setMaxBufferedRequests(getMaxBufferedRequests())
                            .setMaxTimeInBufferMS(getMaxTimeInBufferMS())
                            .setMaxRecordSizeInBytes(getMaxRecordSizeInBytes())
                            .build();
            return new HttpWriter(this, url, context, configuration, state);
        }

        @Override
        public SimpleVersionedSerializer<BufferedRequestState<String>> getWriterStateSerializer() {
            return new RowsSerializer();
        }
    }

    /** Flink asks for it although the job has no checkpoints. */
    static final class RowsSerializer extends AsyncSinkWriterStateSerializer<String> {
        @Override
        protected void serializeRequestToStream(String row, DataOutputStream out) throws IOException {
            out.writeUTF(row);
        }

        @Override
        protected String deserializeRequestFromStream(long size, DataInputStream in) throws IOException {
            return in.readUTF();
        }

        @Override
        public int getVersion() {
            return 1;
        }
    }

    static final class HttpWriter extends AsyncSinkWriter<String, String> {
        private final HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        private final URI url;

        HttpWriter(
                HttpSink sink,
                String url,
                WriterInitContext context,
                AsyncSinkWriterConfiguration configuration,
                Collection<BufferedRequestState<String>> state) {
            super((row, ignored) -> row, context, configuration, state);
            this.url = URI.create(url);
        }

        @Override
        protected void submitRequestEntries(List<String> rows, ResultHandler<String> handler) {
            String body = String.join("\n", rows) + "\n";
            HttpRequest request =
                    HttpRequest.newBuilder(url).POST(HttpRequest.BodyPublishers.ofString(body)).build();
            client.sendAsync(request, HttpResponse.BodyHandlers.discarding())
                    .whenComplete(
                            (response, error) -> {
                                if (error == null && response.statusCode() == 200) {
                                    handler.complete();
                                } else {
                                    handler.retryForEntries(rows);
                                }
                            });
        }

        @Override
        protected long getSizeInBytes(String row) {
            return row.getBytes(StandardCharsets.UTF_8).length;
        }
    }
}
