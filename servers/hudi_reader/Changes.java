import java.util.ArrayList;
import java.util.List;
import org.apache.avro.generic.IndexedRecord;
import org.apache.hadoop.conf.Configuration;
import org.apache.hudi.common.model.HoodieLogFile;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.cdc.HoodieCDCExtractor;
import org.apache.hudi.common.table.cdc.HoodieCDCFileSplit;
import org.apache.hudi.common.table.cdc.HoodieCDCUtils;
import org.apache.hudi.common.table.log.HoodieCDCLogRecordIterator;
import org.apache.hudi.common.table.log.InstantRange;
import org.apache.hudi.common.table.timeline.HoodieInstant;
import org.apache.hudi.storage.HoodieStorageUtils;
import org.apache.hudi.storage.StoragePath;
import org.apache.hudi.storage.hadoop.HadoopStorageConfiguration;

/**
 * Prints what Hudi's own query for change data capture reads of a table that records operations and keys, a
 * line for each change: the instant, the operation and the key, or, of file groups that a commit begins or
 * that lose all rows, `file` and the path.
 *
 * <p>Argument: the table.
 */
public class Changes {
  public static void main(String[] arguments) throws Exception {
    HadoopStorageConfiguration storage = new HadoopStorageConfiguration(new Configuration());
    HoodieTableMetaClient table =
        HoodieTableMetaClient.builder().setConf(storage).setBasePath(arguments[0]).build();
    java.util.Set<String> instants = new java.util.HashSet<>();
    for (HoodieInstant instant : table.getActiveTimeline().filterCompletedInstants().getInstants()) {
      instants.add(instant.requestedTime());
    }
    InstantRange range =
        InstantRange.builder()
            .rangeType(InstantRange.RangeType.EXACT_MATCH)
            .explicitInstants(instants)
            .build();
    List<HoodieCDCFileSplit> splits = new ArrayList<>();
    new HoodieCDCExtractor(table, range, false).extractCDCFileSplits().values().forEach(splits::addAll);
    for (HoodieCDCFileSplit split : splits) {
      switch (split.getCdcInferCase()) {
        case AS_IS -> {
          HoodieLogFile[] files =
              split.getCdcFiles().stream()
                  .map(path -> new HoodieLogFile(new StoragePath(arguments[0], path)))
                  .toArray(HoodieLogFile[]::new);
          try (HoodieCDCLogRecordIterator records =
              new HoodieCDCLogRecordIterator(
                  HoodieStorageUtils.getStorage(new StoragePath(arguments[0]), storage),
                  files,
                  HoodieCDCUtils.CDC_SCHEMA_OP_AND_RECORDKEY)) {
            while (records.hasNext()) {
              IndexedRecord record = records.next();
              System.out.println(split.getInstant() + " " + record.get(0) + " " + record.get(1));
            }
          }
        }
        case BASE_FILE_INSERT ->
            System.out.println(split.getInstant() + " file " + split.getCdcFiles().get(0));
        default -> throw new IllegalStateException(split.getCdcInferCase().toString());
      }
    }
  }
}
