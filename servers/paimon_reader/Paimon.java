import java.util.ArrayList;
import java.util.List;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.serializer.InternalRowSerializer;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.manifest.BucketEntry;
import org.apache.paimon.operation.LocalOrphanFilesClean;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.options.Options;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.RowKind;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.InternalRowUtils;

/** `read` prints the rows, a line for each; the other commands change the table. */
public class Paimon {
  public static void main(String[] arguments) throws Exception {
    Options options = new Options();
    options.set("warehouse", arguments[0]);
    Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
    FileStoreTable table = (FileStoreTable) catalog.getTable(Identifier.fromString(arguments[1]));
    for (int number = 2; number < arguments.length; number++) {
      switch (arguments[number]) {
        case "read" -> read(table);
        case "append" -> write(table, Long.parseLong(arguments[++number]), RowKind.INSERT);
        case "delete" -> write(table, Long.parseLong(arguments[++number]), RowKind.DELETE);
        case "rewrite" -> rewrite(table);
        case "compact" -> compact(table);
        case "expire" -> expire(table);
        case "remove-orphans" -> new LocalOrphanFilesClean(table, Long.MAX_VALUE, false).clean();
        default -> throw new IllegalArgumentException(arguments[number]);
      }
    }
  }

  private static void read(FileStoreTable table) throws Exception {
    RowType type = table.rowType();
    List<InternalRow.FieldGetter> getters = new ArrayList<>();
    for (int column = 0; column < type.getFieldCount(); column++) {
      getters.add(InternalRow.createFieldGetter(type.getTypeAt(column), column));
    }
    ReadBuilder builder = table.newReadBuilder();
    try (RecordReader<InternalRow> reader = builder.newRead().createReader(builder.newScan().plan())) {
      reader.forEachRemaining(
          row -> {
            List<String> texts = new ArrayList<>();
            for (int column = 0; column < getters.size(); column++) {
              DataField field = type.getFields().get(column);
              texts.add(field.name() + "=" + text(getters.get(column).getFieldOrNull(row), field.type()));
            }
            System.out.println(String.join("|", texts));
          });
    }
  }

  private static String text(Object value, org.apache.paimon.types.DataType type) {
    if (value == null) {
      return "NULL";
    }
    var cast = org.apache.paimon.casting.CastExecutors.resolveToString(type);
    return cast == null ? value.toString() : String.valueOf(((org.apache.paimon.casting.CastExecutor) cast).cast(value));
  }

  private static void write(FileStoreTable table, long id, RowKind kind) throws Exception {
    BatchWriteBuilder builder = table.newBatchWriteBuilder();
    try (BatchTableWrite write = builder.newWrite();
        BatchTableCommit commit = builder.newCommit()) {
      write.withIOManager(IOManager.create(System.getProperty("java.io.tmpdir")));
      GenericRow row = new GenericRow(table.rowType().getFieldCount());
      row.setField(0, id);
      row.setRowKind(kind);
      write.write(row);
      commit.commit(write.prepareCommit());
    }
  }

  /** Writes all rows again, into the buckets of their keys. */
  private static void rewrite(FileStoreTable table) throws Exception {
    InternalRowSerializer serializer = new InternalRowSerializer(table.rowType());
    List<InternalRow> rows = new ArrayList<>();
    ReadBuilder reads = table.newReadBuilder();
    try (RecordReader<InternalRow> reader = reads.newRead().createReader(reads.newScan().plan())) {
      reader.forEachRemaining(row -> rows.add(serializer.copy(row)));
    }
    BatchWriteBuilder builder = table.newBatchWriteBuilder();
    try (BatchTableWrite write = builder.newWrite();
        BatchTableCommit commit = builder.newCommit()) {
      write.withIOManager(IOManager.create(System.getProperty("java.io.tmpdir")));
      for (InternalRow row : rows) {
        write.write(row);
      }
      commit.commit(write.prepareCommit());
    }
  }

  /** Merges all files of each bucket into one sorted run, without the rows that are deleted. */
  private static void compact(FileStoreTable table) throws Exception {
    BatchWriteBuilder builder = table.newBatchWriteBuilder();
    try (BatchTableWrite write = builder.newWrite();
        BatchTableCommit commit = builder.newCommit()) {
      write.withIOManager(IOManager.create(System.getProperty("java.io.tmpdir")));
      for (BucketEntry bucket : table.newSnapshotReader().bucketEntries()) {
        write.compact(bucket.partition(), bucket.bucket(), true);
      }
      commit.commit(write.prepareCommit());
    }
  }

  private static void expire(FileStoreTable table) {
    ExpireConfig newest = ExpireConfig.builder().snapshotRetainMin(1).snapshotRetainMax(1).build();
    table.newExpireSnapshots().config(newest).expire();
  }
}
