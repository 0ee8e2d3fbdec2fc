import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.avro.Schema;
import org.apache.avro.SchemaBuilder;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.hadoop.conf.Configuration;
import org.apache.hudi.client.HoodieJavaWriteClient;
import org.apache.hudi.client.common.HoodieJavaEngineContext;
import org.apache.hudi.common.config.HoodieMetadataConfig;
import org.apache.hudi.common.engine.EngineType;
import org.apache.hudi.common.model.HoodieAvroPayload;
import org.apache.hudi.common.model.HoodieAvroRecord;
import org.apache.hudi.common.model.HoodieKey;
import org.apache.hudi.common.model.HoodieRecord;
import org.apache.hudi.common.model.HoodieTimelineTimeZone;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.HoodieTableVersion;
import org.apache.hudi.common.table.marker.MarkerType;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.config.HoodieIndexConfig;
import org.apache.hudi.config.HoodieWriteConfig;
import org.apache.hudi.index.HoodieIndex.IndexType;
import org.apache.hudi.storage.hadoop.HadoopStorageConfiguration;

/**
 * Inserts, upserts or deletes rows with Hudi's own writer, in one commit, in a table with the columns
 * id and day.
 *
 * <p>Arguments: the table, which is created if it does not exist; its version; its type; whether it has a
 * metadata table; whether it records the operation and the key of each change; what it does; the ids of the
 * rows.
 */
public class Writer {
  public static void main(String[] arguments) throws Exception {
    String table = arguments[0];
    int version = Integer.parseInt(arguments[1]);
    List<String> ids = Arrays.asList(arguments).subList(6, arguments.length);
    Schema schema =
        SchemaBuilder.record("events_record")
            .namespace("hoodie.events")
            .fields()
            .optionalLong("id")
            .optionalString("day")
            .endRecord();
    HadoopStorageConfiguration storage = new HadoopStorageConfiguration(new Configuration());
    if (!new java.io.File(table, ".hoodie").exists()) {
      HoodieTableMetaClient.newTableBuilder()
          .setTableType(arguments[2])
          .setTableName("events")
          .setTableVersion(HoodieTableVersion.fromVersionCode(version))
          .setRecordKeyFields("id")
          .setPartitionFields("day")
          .setKeyGeneratorClassProp("org.apache.hudi.keygen.SimpleKeyGenerator")
          .setHiveStylePartitioningEnable(true)
          .setUrlEncodePartitioning(true)
          .setCDCEnabled(Boolean.parseBoolean(arguments[4]))
          .setCDCSupplementalLoggingMode("op_key_only")
          .setCommitTimezone(HoodieTimelineTimeZone.UTC)
          .initTable(storage, table);
    }
    HoodieMetadataConfig metadata =
        HoodieMetadataConfig.newBuilder().enable(Boolean.parseBoolean(arguments[3])).build();
    HoodieWriteConfig config =
        HoodieWriteConfig.newBuilder()
            .withPath(table)
            .withSchema(schema.toString())
            .forTable("events")
            .withParallelism(1, 1)
            .withEngineType(EngineType.JAVA)
            .withWriteTableVersion(version)
            .withAutoUpgradeVersion(false)
            .withEmbeddedTimelineServerEnabled(false)
            .withMarkersType(MarkerType.DIRECT.name())
            .withMetadataConfig(metadata)
            .withIndexConfig(HoodieIndexConfig.newBuilder().withIndexType(IndexType.SIMPLE).build())
            .build();
    try (HoodieJavaWriteClient<HoodieAvroPayload> client =
        new HoodieJavaWriteClient<>(new HoodieJavaEngineContext(storage), config)) {
      String instant = client.startCommit();
      List<HoodieRecord<HoodieAvroPayload>> rows =
          ids.stream().map(id -> row(schema, id)).collect(Collectors.toCollection(ArrayList::new));
      client.commit(
          instant,
          switch (arguments[5]) {
            case "insert" -> client.insert(rows, instant);
            case "upsert" -> client.upsert(rows, instant);
            case "delete" ->
                client.delete(rows.stream().map(HoodieRecord::getKey).collect(Collectors.toList()), instant);
            default -> throw new IllegalArgumentException(arguments[5]);
          });
    }
  }

  private static HoodieRecord<HoodieAvroPayload> row(Schema schema, String id) {
    GenericRecord row = new GenericData.Record(schema);
    row.put("id", Long.parseLong(id));
    row.put("day", "x");
    return new HoodieAvroRecord<>(new HoodieKey(id, "day=x"), new HoodieAvroPayload(Option.of(row)));
  }
}
