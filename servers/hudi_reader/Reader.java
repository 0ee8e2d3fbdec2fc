import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hudi.common.config.HoodieMetadataConfig;
import org.apache.hudi.common.engine.HoodieEngineContext;
import org.apache.hudi.common.engine.HoodieLocalEngineContext;
import org.apache.hudi.common.fs.FSUtils;
import org.apache.hudi.common.model.HoodieBaseFile;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.TableSchemaResolver;
import org.apache.hudi.common.table.log.InstantRange;
import org.apache.hudi.common.table.read.IncrementalQueryAnalyzer;
import org.apache.hudi.common.table.timeline.HoodieInstant;
import org.apache.hudi.common.table.view.FileSystemViewManager;
import org.apache.hudi.common.table.view.HoodieTableFileSystemView;
import org.apache.hudi.storage.hadoop.HadoopStorageConfiguration;

/**
 * Prints what Hudi's readers see of a table, a line for each fact.
 *
 * <p>Arguments: the table; optionally an instant for time travel; optionally the time of a completion, after
 * which an incremental query begins.
 */
public class Reader {
  public static void main(String[] arguments) throws Exception {
    HadoopStorageConfiguration storage = new HadoopStorageConfiguration(new Configuration());
    HoodieTableMetaClient table =
        HoodieTableMetaClient.builder().setConf(storage).setBasePath(arguments[0]).build();
    System.out.println("version " + table.getTableConfig().getTableVersion().versionCode());
    System.out.println("columns " + new TableSchemaResolver(table).getTableSchema(false));
    for (HoodieInstant instant : table.getActiveTimeline().getInstants()) {
      System.out.println((instant.isCompleted() ? "completed " : "pending ") + instant.requestedTime());
      if (instant.isCompleted() && instant.getAction().equals("commit")) {
        System.out.println(
            "rows " + table.getActiveTimeline().readCommitMetadata(instant).fetchTotalRecordsWritten());
      }
    }
    if (arguments.length > 2) {
      IncrementalQueryAnalyzer.Builder query =
          IncrementalQueryAnalyzer.builder()
              .metaClient(table)
              .startCompletionTime(arguments[2])
              .rangeType(InstantRange.RangeType.OPEN_CLOSED);
      for (String instant : query.build().analyze().getInstantTimeList()) {
        System.out.println("changed " + instant);
      }
    }
    HoodieEngineContext engine = new HoodieLocalEngineContext(storage);
    HoodieMetadataConfig listing = HoodieMetadataConfig.newBuilder().enable(false).build();
    HoodieTableFileSystemView view =
        FileSystemViewManager.createInMemoryFileSystemView(engine, table, listing);
    for (String partition : FSUtils.getAllPartitionPaths(engine, table, listing)) {
      Stream<HoodieBaseFile> files =
          arguments.length > 1
              ? view.getLatestBaseFilesBeforeOrOn(partition, arguments[1])
              : view.getLatestBaseFiles(partition);
      for (HoodieBaseFile file : (Iterable<HoodieBaseFile>) files::iterator) {
        System.out.println("file " + (partition.isEmpty() ? "" : partition + "/") + file.getFileName());
      }
    }
  }
}
